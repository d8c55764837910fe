r"""Parser of expressions.

The grammar is that of LaTeX as answers use it, with the operators and names of plain texts. A text outside it is
unreadable; nothing is dropped or guessed, because a wrong reading makes different answers equal.
"""

from collections.abc import Sequence
from fractions import Fraction

from astraflow.rewards.mathematics.algebra.cursor import CLOSING, Cursor
from astraflow.rewards.mathematics.algebra.expressions import Apply, Expression, Number, Symbol
from astraflow.rewards.mathematics.tokens import FUNCTIONS, Kind, Token, Unreadable

MAX_DEPTH = 60
"""Deepest nesting of an expression that is read."""

GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu",
    "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta",
    "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega", "ell", "hbar",
))  # fmt: skip
"""Names of letters."""

_UNKNOWN_FUNCTIONS = frozenset("fghFGH")
_INVERSE = {name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc")}
_LISTS = frozenset(("gcd", "lcm", "max", "min"))
_BIG = {"sum": "sum", "prod": "prod"}


def parse(tokens: Sequence[Token]) -> Expression:
    r"""Returns the expression that all tokens form. Raises: Unreadable.

    >>> from astraflow.rewards.mathematics.tokens import tokens_of
    >>> parse(tokens_of("2x")) == parse(tokens_of(r"2\cdot x")), parse(tokens_of(r"\frac12"))
    (True, Apply(function='/', arguments=(Number(value=Fraction(1, 1), is_decimal=False), Number(value=Fraction(2, 1), \
is_decimal=False))))
    """
    parser = _Parser(list(tokens))
    expression = parser.infix()
    if parser.next is not None:
        raise Unreadable
    return expression


class _Parser(Cursor):
    """Reads an expression from tokens, from left to right."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._depth = 0
        self._bars = 0

    def infix(self) -> Expression:
        r"""Reads a sum, or two with \over or \choose between them."""
        value = self.sum()
        if operator := self.take_operator("\\over", "\\choose"):
            value = Apply("/" if operator == "over" else "binom", (value, self.sum()))
        return value

    def sum(self) -> Expression:
        """Reads terms with + and - between them."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable
        value = self._signed()
        while operator := self.take_operator("+", "-", "\\pm", "\\mp"):
            value = Apply(operator, (value, self._term()))
        self._depth -= 1
        return value

    def _signed(self) -> Expression:
        operator = self.take_operator("+", "-", "\\pm", "\\mp")
        if not operator:
            return self._term()
        if operator in ("+", "-"):
            value = self._signed_term()
            return Apply("neg", (value,)) if operator == "-" else value
        return Apply(operator, (Number(Fraction(0)), self._term()))

    def _signed_term(self) -> Expression:
        return Apply("neg", (self._signed_term(),)) if self.take_operator("-") else self._term()

    def _term(self) -> Expression:
        """Reads factors with or without an operator between them."""
        value = self._factor()
        while True:
            if self.take_operator("*", "\\cdot", "\\times", "\\ast"):
                value = Apply("*", (value, self._signed_factor()))
            elif self.take_operator("/", "\\div"):
                value = Apply("/", (value, self._signed_factor()))
            elif self._starts_factor():
                value = Apply("*", (value, self._factor()))
            else:
                return value

    def _signed_factor(self) -> Expression:
        if self.take_operator("-"):
            return Apply("neg", (self._signed_factor(),))
        self.take_operator("+")
        return self._factor()

    def _starts_factor(self) -> bool:
        token = self.next
        if token is None:
            return False
        if token.kind is Kind.LETTER or (token.kind is Kind.WORD and len(token.text) == 1):
            return True
        if token.kind is Kind.MARK:
            return token.text in ("(", "[", "{") or (token.text == "|" and not self._bars)
        if token.kind is Kind.NUMBER:
            return self.tokens[self.at - 1].text == "!"
        return token.kind is Kind.COMMAND and (
            token.text in FUNCTIONS
            or token.text in GREEK
            or token.text in ("pi", "frac", "binom", "lfloor", "lceil", "sum", "prod", "infty")
        )

    def _factor(self) -> Expression:
        """Reads an atom with its powers, factorials and degrees."""
        token = self.next
        value = self._mixed() or self._atom()
        while True:
            if self.take_mark("^"):
                value = Apply("^", (value, self._exponent()))
            elif self.is_mark("!"):
                count = 0
                while self.take_mark("!"):
                    count += 1
                if count > 2:
                    raise Unreadable
                value = Apply("!" * count, (value,))
            elif self.take_command("degree"):
                value = Apply("degree", (self._with_minutes(value),))
            elif self.take_mark("%"):
                value = Apply("/", (value, Number(Fraction(100))))
            elif token is not None and token.kind is Kind.NUMBER and self.is_mark("'"):
                raise Unreadable
            else:
                return value

    def _with_minutes(self, value: Expression) -> Expression:
        """Reads minutes and seconds of an angle."""
        for scale, marks in ((60, 1), (3600, 2)):
            follows = self.tokens[self.at : self.at + 1 + marks]
            is_part = len(follows) == 1 + marks and follows[0].kind is Kind.NUMBER
            if is_part and all(token.text == "'" for token in follows[1:]):
                value = Apply("+", (value, Number(follows[0].value / scale)))
                self.at += 1 + marks
        return value

    def _mixed(self) -> Expression | None:
        r"""Reads a mixed number: an integer before a proper fraction. Any other fraction there is unreadable."""
        whole = self.next
        if whole is None or whole.kind is not Kind.NUMBER or not whole.text.isdecimal():
            return None
        begin = self.at
        self.at += 1
        fraction = self._literal_fraction()
        if fraction is None:
            self.at = begin
            return None
        over, under = fraction
        if not 0 < over < under:
            raise Unreadable
        return Number(whole.value + Fraction(over, under))

    def _literal_fraction(self) -> tuple[int, int] | None:
        """Reads a fraction of two literal integers."""
        tokens = list(self.tokens)  # reading an argument may split a token
        if self.take_command("frac"):
            over, under = self._argument(), self._argument()
            if isinstance(over, Number) and isinstance(under, Number):
                is_integer = over.value.denominator == under.value.denominator == 1
                return (int(over.value), int(under.value)) if is_integer else None
            self.tokens = tokens
            return None
        parts = self.tokens[self.at : self.at + 3]
        if len(parts) == 3 and parts[1].text == "/" and parts[0].text.isdecimal() and parts[2].text.isdecimal():
            self.at += 3
            return int(parts[0].value), int(parts[2].value)
        return None

    def _exponent(self) -> Expression:
        if self.take_operator("-"):
            return Apply("neg", (self._exponent(),))
        self.take_operator("+")
        value = self._atom()
        return Apply("^", (value, self._exponent())) if self.take_mark("^") else value

    def _argument(self) -> Expression:
        """Reads a group, or a single digit, letter or command as LaTeX does."""
        token = self.next
        if token is not None and token.kind is Kind.NUMBER and token.text.isdecimal() and len(token.text) > 1:
            first, rest = token.text[0], token.text[1:]
            self.tokens[self.at] = Token(Kind.NUMBER, rest, Fraction(rest))
            return Number(Fraction(first))
        return self._atom()

    def _atom(self) -> Expression:
        token = self.next
        if token is None:
            raise Unreadable
        self.at += 1
        if token.kind is Kind.NUMBER:
            if self.is_mark("_"):
                raise Unreadable
            return Number(token.value, token.is_decimal)
        if token.kind is Kind.LETTER or (token.kind is Kind.WORD and len(token.text) == 1):
            return self._symbol(token.text)
        if token.kind is Kind.MARK:
            return self._bracketed(token.text)
        if token.kind is Kind.COMMAND:
            return self._command(token.text)
        raise Unreadable

    def _bracketed(self, mark: str) -> Expression:
        if mark == "|":
            self._bars += 1
            value = self.sum()
            self.expect("|")
            self._bars -= 1
            return Apply("abs", (value,))
        if mark not in ("(", "[", "{"):
            raise Unreadable
        bars, self._bars = self._bars, 0
        value = self.infix()
        self.expect(CLOSING[mark])
        self._bars = bars
        return value

    def _symbol(self, letter: str) -> Expression:
        name = letter
        if self.take_mark("_"):
            name += f"_{self.raw()}"
        while self.take_mark("'"):
            name += "'"
        if letter in ("C", "P") and name == letter and self.is_mark("("):
            chosen = self._pair()
            if chosen is not None:
                return Apply("binom" if letter == "C" else "permutations", chosen)
        if letter in _UNKNOWN_FUNCTIONS and self.is_mark("("):
            name += self.raw()
        if name == "e":
            return Apply("e", ())
        return Symbol(name)

    def _pair(self) -> tuple[Expression, Expression] | None:
        """Reads two arguments in parentheses; nothing if it is another group."""
        begin = self.at
        arguments = self._arguments()
        if len(arguments) == 2:
            return arguments[0], arguments[1]
        self.at = begin
        return None

    def _arguments(self) -> tuple[Expression, ...]:
        self.expect("(")
        arguments = [self.sum()]
        while self.take_mark(","):
            arguments.append(self.sum())
        self.expect(")")
        return tuple(arguments)

    def _command(self, name: str) -> Expression:
        if name in GREEK:
            return self._symbol(name)
        if name == "pi":
            return Apply("pi", ())
        if name == "infty":
            return Apply("infty", ())
        if name == "frac":
            return Apply("/", (self._argument(), self._argument()))
        if name == "binom":
            return Apply("binom", (self._argument(), self._argument()))
        if name == "sqrt":
            return self._root()
        if name in ("lfloor", "lceil"):
            value = self.sum()
            if not self.take_command("rfloor" if name == "lfloor" else "rceil"):
                raise Unreadable
            return Apply("floor" if name == "lfloor" else "ceil", (value,))
        if name in _BIG:
            return self._big(_BIG[name])
        if name in ("overline", "bar"):
            raise Unreadable
        return self._function(name)

    def _root(self) -> Expression:
        degree: Expression = Number(Fraction(2))
        if self.is_mark("["):
            self.at += 1
            degree = self.sum()
            self.expect("]")
        return Apply("root", (self._atom(), degree))

    def _function(self, name: str) -> Expression:
        if name not in FUNCTIONS:
            raise Unreadable
        if name in _LISTS:
            return Apply(name, self._arguments())
        base: Expression | None = None
        power: Expression | None = None
        while self.is_mark("_") or self.is_mark("^"):
            if self.take_mark("_"):
                base = self._argument_of_base()
            else:
                self.at += 1
                power = self._exponent()
        if power == Apply("neg", (Number(Fraction(1)),)) and name in _INVERSE:
            name, power = _INVERSE[name], None
        value = Apply(name, (self._function_argument(), *([base] if base is not None else [])))
        return Apply("^", (value, power)) if power is not None else value

    def _argument_of_base(self) -> Expression:
        return self._atom() if self.is_mark("{") else self._argument()

    def _function_argument(self) -> Expression:
        """Reads what a function applies to: a group, or the factors before the next operator or function."""
        if self.is_mark("(") or self.is_mark("{"):
            value = self._atom()
            if self.take_command("degree"):
                value = Apply("degree", (value,))
            return value
        if self.take_operator("-"):
            return Apply("neg", (self._function_argument(),))
        value = self._factor()
        while True:
            token = self.next
            if token is None or (token.kind is Kind.COMMAND and token.text in FUNCTIONS and token.text != "sqrt"):
                return value
            if token.text == "(" or not self._starts_factor():
                return value
            value = Apply("*", (value, self._factor()))

    def _big(self, function: str) -> Expression:
        r"""Reads \sum_{k=a}^{b} and \prod; the body is the following term."""
        bounds: dict[str, list[Token]] = {}
        for _ in range(2):
            token = self.next
            if token is None or token.text not in ("_", "^"):
                raise Unreadable
            self.at += 1
            bounds[token.text] = self.group_tokens()
        lower, upper = bounds.get("_", []), bounds.get("^", [])
        if len(lower) < 3 or lower[0].kind is not Kind.LETTER or lower[1].text != "=" or not upper:
            raise Unreadable
        variable = Symbol(lower[0].text)
        return Apply(function, (variable, parse(lower[2:]), parse(upper), self._term()))
