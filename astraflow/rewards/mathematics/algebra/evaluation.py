"""Bounded evaluation of expressions: exact for rational numbers, else with many digits.

Every operation is checked before it is computed: no power, factorial or sum grows beyond fixed bounds, and the number
of operations is limited, so that an expression of a policy takes a fraction of a second, whatever it says.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, TypeAlias

from mpmath import MPContext, mpc, mpf

from astraflow.rewards.mathematics.algebra.expressions import (
    MAX_BITS,
    Apply,
    Expression,
    Number,
    Symbol,
    exact_logarithm,
    exact_power,
    exact_root,
)

MAX_STEPS = 12_000
"""Operations of one comparison; a function that is no arithmetic counts as several."""
MAX_TERMS = 1000
"""Terms of a sum or a product."""
MAX_FACTORIAL = 3000
"""Largest argument of an exact factorial."""

_MAX_EXPONENT_BITS = 40
_MAX_ANGLE_BITS = 300
_LOST_SHARE = 0.9
_FUNCTION_STEPS = 5
_GAMMA_STEPS = 100
_STEP_BITS = 2000

Value: TypeAlias = Fraction | mpf | mpc


class Undefined(Exception):
    """An expression has no value, or none that can be computed within the bounds."""


class Budget:
    """Operations that may still be done."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps = steps

    def spend(self, steps: int = 1) -> None:
        """Counts operations. Raises: Undefined when none is left."""
        self._steps -= steps
        if self._steps < 0:
            raise Undefined


@cache
def _context(digits: int) -> MPContext:
    context = MPContext()
    context.dps = digits
    return context


class Evaluator:
    """Computes values of expressions with a number of decimal digits, for given values of the letters.

    has_complex: whether roots and logarithms of negative numbers have values.
    """

    def __init__(self, digits: int, letters: Mapping[str, Fraction], budget: Budget, *, has_complex: bool) -> None:
        self._mp = _context(digits)
        self._letters = dict(letters)
        self._budget = budget
        self._has_complex = has_complex
        self._functions: dict[str, Callable[..., Value]] = {
            "+": self._add, "-": lambda left, right: self._add(left, -right), "neg": lambda value: -value,
            "*": self._multiply, "/": self._divide, "^": self._power, "root": self._root,
            "!": self._factorial, "!!": self._double_factorial, "binom": self._binomial, "permutations": self._falling,
            "abs": abs, "floor": self._floor, "ceil": lambda value: -self._floor(-value), "degree": self._degree,
            "pi": lambda: +self._mp.pi, "e": lambda: +self._mp.e, "gcd": self._gcd, "lcm": self._lcm,
            "max": lambda *values: max(values, key=self._real), "min": lambda *values: min(values, key=self._real),
            "exp": lambda value: self._power(+self._mp.e, value), "ln": self._ln, "lg": self._log, "log": self._log,
            **{name: self._trigonometric(name) for name in _TRIGONOMETRIC},
        }  # fmt: skip

    def value(self, expression: Expression) -> Value:
        """Returns the value. Raises: Undefined."""
        try:
            return self._checked(self._value(expression))
        except (ValueError, ZeroDivisionError, OverflowError, TypeError, RecursionError) as problem:
            raise Undefined from problem

    def number(self, value: Value) -> Any:
        """Returns a value as a number of mpmath."""
        return self._mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value

    def digits_of(self, value: Value, digits: int) -> str:
        """Returns the first digits of a value."""
        return str(self._mp.nstr(self.number(value), digits))

    def size(self, value: Value) -> Any:
        """Returns the absolute value as a number of mpmath."""
        return abs(self.number(value))

    def magnitude(self, value: Value) -> int:
        """Returns the power of ten of the first digit of a value that is not 0."""
        size = self.size(value)
        power = math.floor(int(self._mp.mag(size)) * math.log10(2))
        return power - bool(size < self._mp.mpf(10) ** power)

    def difference(self, left: Value, right: Value) -> Any:
        """Returns the absolute difference as a number of mpmath."""
        return abs(self.number(left) - self.number(right))

    def _value(self, expression: Expression) -> Value:
        self._budget.spend()
        if isinstance(expression, Number):
            return expression.value
        if isinstance(expression, Symbol):
            return self._letter(expression.name)
        if expression.function in ("sum", "prod"):
            return self._series(expression)
        function = self._functions.get(expression.function)
        if function is None:
            raise Undefined
        return self._checked(function(*map(self._value, expression.arguments)))

    def _letter(self, name: str) -> Value:
        if name in self._letters:
            return self._letters[name]
        if name == "i":
            return self._mp.mpc(0, 1)
        raise Undefined

    def _checked(self, value: Value) -> Value:
        """Returns the value without a part that is 0; a long rational number becomes a rounded one."""
        if isinstance(value, int):
            value = Fraction(value)
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            self._budget.spend((bits // _STEP_BITS) ** 2)
            return value if bits <= MAX_BITS else self.number(value)
        if not self._mp.isfinite(value):
            raise Undefined
        if isinstance(value, self._mp.mpc):
            if value.imag == 0:
                return value.real
            if not self._has_complex:
                raise Undefined
        return value

    def _real(self, value: Value) -> Any:
        if isinstance(value, self._mp.mpc):
            raise Undefined
        return self.number(value)

    def _integer(self, value: Value) -> int:
        if not isinstance(value, Fraction) or value.denominator != 1:
            raise Undefined
        return int(value)

    def _add(self, left: Value, right: Value) -> Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left + right
        first, second = self.number(left), self.number(right)
        if first and second and abs(self._mp.mag(first) - self._mp.mag(second)) > _LOST_SHARE * self._mp.prec:
            raise Undefined  # the smaller one would be lost, and different sums would be equal
        return first + second

    def _multiply(self, left: Value, right: Value) -> Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left * right
        return self.number(left) * self.number(right)

    def _divide(self, left: Value, right: Value) -> Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left / right
        return self.number(left) / self.number(right)

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            exact = exact_power(base, exponent)
            if exact is not None:
                return exact
            if base < 0 and exponent.denominator in (3, 5, 7, 9):  # the real root
                return self._power(self._root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
        if base == 0:
            if self._real(exponent) <= 0:
                raise Undefined
            return Fraction(0)
        base_number, exponent_number = self.number(base), self.number(exponent)
        growth = abs(self._mp.mag(base_number)) + 1
        if exponent_number and self._mp.mag(exponent_number) + growth.bit_length() > _MAX_EXPONENT_BITS:
            raise Undefined
        self._budget.spend(_FUNCTION_STEPS)
        if isinstance(exponent, Fraction) and exponent.denominator == 1:
            return base_number ** int(exponent)
        return self._mp.power(base_number, exponent_number)

    def _root(self, value: Value, degree: Value) -> Value:
        count = degree if isinstance(degree, Fraction) else Fraction(0)
        if count.denominator != 1 or not 1 <= count <= 1000:
            return self._power(value, self._divide(Fraction(1), degree))
        if isinstance(value, Fraction):
            exact = exact_root(abs(value), int(count)) if value >= 0 or count % 2 else None
            if exact is not None:
                return exact if value >= 0 else -exact
        self._budget.spend(_FUNCTION_STEPS)
        number = self.number(value)
        if not isinstance(number, self._mp.mpc) and number < 0 and count % 2:
            return -self._mp.root(-number, int(count))
        return self._mp.root(number, int(count))

    def _factorial(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value.denominator == 1:
            if value < 0:
                raise Undefined
            if value <= MAX_FACTORIAL:
                self._budget.spend(1 + int(value) // 50)
                return Fraction(math.factorial(int(value)))
        return self._gamma(self._add(value, Fraction(1)))

    def _gamma(self, value: Value) -> Value:
        number = self._real(value)
        if abs(number) > 10**6:
            raise Undefined
        self._budget.spend(_GAMMA_STEPS)
        return self._mp.gamma(number)

    def _double_factorial(self, value: Value) -> Value:
        number = self._integer(value)
        if not 0 <= number <= MAX_FACTORIAL:
            raise Undefined
        self._budget.spend(1 + number // 50)
        return Fraction(math.prod(range(number, 0, -2)))

    def _binomial(self, upper: Value, lower: Value) -> Value:
        if isinstance(lower, Fraction) and lower.denominator == 1 and 0 <= lower <= 200:
            return self._divide(self._falling(upper, lower), Fraction(math.factorial(int(lower))))
        if isinstance(upper, Fraction) and isinstance(lower, Fraction) and upper.denominator == lower.denominator == 1:
            if 0 <= lower <= upper <= 20_000:
                self._budget.spend(1 + int(upper) // 50)
                return Fraction(math.comb(int(upper), int(lower)))
            if 0 <= upper < lower:
                return Fraction(0)
        under = self._multiply(self._factorial(lower), self._factorial(self._add(upper, -lower)))
        return self._divide(self._factorial(upper), under)

    def _falling(self, upper: Value, count: Value) -> Value:
        number = self._integer(count)
        if not 0 <= number <= 200:
            raise Undefined
        self._budget.spend(1 + number)
        product: Value = Fraction(1)
        for step in range(number):
            product = self._checked(self._multiply(product, self._add(upper, Fraction(-step))))
        return product

    def _floor(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            return Fraction(math.floor(value))
        number = self._real(value)
        if self._mp.mag(number) > MAX_BITS or abs(number - self._mp.nint(number)) < self._mp.mpf(10) ** -20:
            raise Undefined
        return Fraction(int(self._mp.floor(number)))

    def _gcd(self, *values: Value) -> Value:
        return Fraction(math.gcd(*map(self._integer, values)))

    def _lcm(self, *values: Value) -> Value:
        return Fraction(math.lcm(*map(self._integer, values)))

    def _degree(self, value: Value) -> Value:
        return self.number(value) * self._mp.pi / 180

    def _ln(self, value: Value) -> Value:
        number = self.number(value)
        if number == 0 or abs(self._mp.mag(number)) > 2**_MAX_EXPONENT_BITS:
            raise Undefined
        self._budget.spend(_FUNCTION_STEPS)
        return self._mp.log(number)

    def _log(self, value: Value, base: Value = Fraction(10)) -> Value:
        if isinstance(value, Fraction) and isinstance(base, Fraction) and value > 0 and base > 1:
            power = exact_logarithm(value, base)
            if power is not None:
                return power
        return self._divide(self._ln(value), self._ln(base))

    def _trigonometric(self, name: str) -> Callable[[Value], Value]:
        function = getattr(self._mp, _TRIGONOMETRIC[name])

        def apply(value: Value) -> Value:
            number = self.number(value)
            is_growing = name in ("sinh", "cosh", "tanh", "coth")
            if number and self._mp.mag(number) > (_MAX_EXPONENT_BITS if is_growing else _MAX_ANGLE_BITS):
                raise Undefined
            self._budget.spend(_FUNCTION_STEPS)
            result: Value = function(number)
            if self._mp.mag(self.number(result)) > self._mp.prec / 2 and not is_growing:
                raise Undefined  # a pole that rounding misses
            return result

        return apply

    def _series(self, expression: Apply) -> Value:
        variable, lower, upper, body = expression.arguments
        first, last = self._integer(self._value(lower)), self._integer(self._value(upper))
        if not isinstance(variable, Symbol) or last - first >= MAX_TERMS:
            raise Undefined
        outer = self._letters.get(variable.name)
        is_sum = expression.function == "sum"
        total: Value = Fraction(0 if is_sum else 1)
        for ordinal in range(first, last + 1):
            self._letters[variable.name] = Fraction(ordinal)
            term = self._value(body)
            total = self._checked(self._add(total, term) if is_sum else self._multiply(total, term))
        if outer is None:
            self._letters.pop(variable.name, None)
        else:
            self._letters[variable.name] = outer
        return total


_TRIGONOMETRIC = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "coth": "coth", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot",
    "arcsec": "asec", "arccsc": "acsc", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh",
}  # fmt: skip
