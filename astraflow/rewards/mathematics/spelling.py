"""Spelling of mathematical texts: one for characters, size commands and separators that mean the same."""

import re
import unicodedata
from fractions import Fraction
from functools import cache

_CHARACTERS = {
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{HYPHEN}": "-",
    "\N{NON-BREAKING HYPHEN}": "-",
    "\N{MULTIPLICATION SIGN}": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∙": r"\cdot ",
    "÷": r"\div ",
    "√": r"\sqrt ",
    "∛": r"\sqrt[3] ",
    "∞": r"\infty ",
    "°": r"^\circ ",
    "º": r"^\circ ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "⩽": r"\le ",
    "⩾": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "≡": r"\equiv ",
    "∈": r"\in ",
    "∉": r"\notin ",
    "\N{UNION}": r"\cup ",
    "∩": r"\cap ",
    "\N{SET MINUS}": r"\setminus ",
    "∅": r"\emptyset ",
    "Ø": r"\emptyset ",
    "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R} ",
    "\N{DOUBLE-STRUCK CAPITAL Z}": r"\mathbb{Z} ",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "⌊": r"\lfloor ",
    "⌋": r"\rfloor ",
    "⌈": r"\lceil ",
    "⌉": r"\rceil ",
    "∑": r"\sum ",
    "∏": r"\prod ",
    "\N{DIVIDES}": "|",
    "…": r"\ldots ",
    "⋯": r"\ldots ",
    "\N{PRIME}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{DOUBLE PRIME}": "''",
    "∘": r"\circ ",
    "\N{FRACTION SLASH}": "/",
    "\N{DIVISION SLASH}": "/",
    "\N{EURO SIGN}": r"\text{euro}",
    "£": r"\text{pound}",
    "\N{ZERO WIDTH SPACE}": "",
}
"""LaTeX of characters that answers contain instead of commands. Greek letters follow by their names."""

_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+")
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)")

_RESISTANCE = r"^\s*([+-]?[\d.,]+(?:\s*\\(?:times|cdot)\s*10\^\{?-?\d+\}?)?|10\^\{?-?\d+\}?)(?:\s|\\[ ,;:~])*"
_SYNONYMS = (
    (r"\\(?:[dtc]frac|nicefrac|sfrac|flatfrac)(?![a-zA-Z])", r"\\frac"),
    (r"\\(?:[dt]binom)(?![a-zA-Z])", r"\\binom"),
    (r"\\(?:leqslant|leqq|leq)(?![a-zA-Z])", r"\\le"),
    (r"\\(?:geqslant|geqq|geq)(?![a-zA-Z])", r"\\ge"),
    (r"\\(?:neq)(?![a-zA-Z])|\\not\s*=", r"\\ne"),
    (r"\\lt(?![a-zA-Z])|&lt;", "<"),
    (r"\\gt(?![a-zA-Z])|&gt;", ">"),
    (r"\\not\s*\\in(?![a-zA-Z])", r"\\notin"),
    (r"\\(?:varnothing|O|empty)(?![a-zA-Z])", r"\\emptyset"),
    (r"\\(?:dots|cdots|dotsc|dotsb|dotsm|hdots)(?![a-zA-Z])|\.\.\.+", r"\\ldots"),
    (r"\\(?:simeq|cong|thickapprox)(?![a-zA-Z])", r"\\approx"),
    (r"\\(?:lvert|rvert|vert|mid)(?![a-zA-Z])", "|"),
    (r"\\colon(?![a-zA-Z])", ":"),
    (r"\\(?:backslash|smallsetminus)(?![a-zA-Z])", r"\\setminus"),
    (r"\\(?:degree|degrees)(?![a-zA-Z])|\\textdegree(?![a-zA-Z])|\^\s*\{?\s*\\circ\s*\}?", r"\\degree "),
    (r"\^\s*(?:\\prime|\{\\prime\})(?![a-zA-Z])", "'"),
    (r"\\lbrace(?![a-zA-Z])", r"\\{"),
    (r"\\rbrace(?![a-zA-Z])", r"\\}"),
    (r"\\(?:lbrack)(?![a-zA-Z])", "["),
    (r"\\(?:rbrack)(?![a-zA-Z])", "]"),
    (r"\\(?:var)(epsilon|phi|theta|rho|sigma|pi)(?![a-zA-Z])", r"\\\1"),
    (r"\^\s*\{?(-?\d+)\}?\s*/\s*_\s*\{?(\d+)\}?", r"\\frac{\1}{\2}"),
    (r"\b([ap])\.\s?m\.|\b([ap])\.m\b", r"\\text{\1\2m}"),
    (r"\*\*", "^"),
    (rf"{_RESISTANCE}\\(?:text|mathrm)\s*\{{\s*([kM])\s*\}}\s*\\Omega\s*$", r"\1\\text{ \2ohm}"),
    (rf"{_RESISTANCE}\\Omega\s*$", r"\1\\text{ ohm}"),
    (r"^\s*(?:\\text\s*\{)?\s*(?:[Tt]he )?(?:set of )?[Aa]ll real(?:s| numbers)\s*\}?[.\s]*$", r"\\mathbb{R}"),
)
_DROPPED = re.compile(
    r"\\(?:left|right|middle|displaystyle|textstyle|scriptstyle|limits|nolimits|[bB]igg?[lrm]?|hfill|noindent"
    r"|normalsize|tiny|small|large|Large|huge|Huge)(?![a-zA-Z])\.?"
    r"|\\(?:[hv]space|phantom|label|tag|vphantom|hphantom)\*?\s*\{[^{}]*\}"
    r"|\\(?:text)?color\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}"
    r"|(?<!\\)\\[()\[\]]|(?<=\\\\)\[[^\]]*\]|(?<!\\)\{\}|\\(?:!|hskip|mathstrut|strut|protect)(?![a-zA-Z])"
)
_SPACES = re.compile(
    r"(?:(?<!\\)\\[,;:> ]|~|\s|\\q?quad(?![a-zA-Z])|\\(?:thinspace|enspace|ensuremath)(?![a-zA-Z])|\\$)+"
)
_GROUP = r"(?:\{,\}|,\\!|\\,|\\!|\\ |~|\\;|\\:)"
_GROUPED = re.compile(rf"(?<![\d.,])(\d{{1,3}})((?:{_GROUP}\d{{3}})+)(?!\d)")
_SPACED = re.compile(r"(\D*?)(\d{1,3})((?: \d{3})+)(\.\d+)?(?![\d(])(\D*)")
_COMMAS = re.compile(r"([^,\d(\[{]*(?:\\text\{[^\d,]*)?)(\d{1,3}(?:,\d{3})+)(?!,?\d)([^,]*)", re.DOTALL)
_PLAIN_UNIT = re.compile(r"([+-]?[\d.,]*\d)\s*([a-zA-Z][a-zA-Z/^*0-9 ]*)")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|operatorname)\s*\{([^{}\\]*)\}")
_SPACED_EXPONENT = re.compile(r"(\d) ?([eE])(?=\s+[+-]?\s*\d|[+-]\s+\d)")
_PLAIN_NUMBER = re.compile(r"([+-]?)(?:\\frac\{(\d+)\}\{(\d+)\}|(\d+)(?:/(\d+))?)", re.ASCII)
_WORDS = re.compile(r"[A-Za-z -]+")
_UNDER_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {word: value for value, word in enumerate(_UNDER_TWENTY.split())} | {
    word: 10 * value for value, word in enumerate(_TENS.split(), start=2)
}
"""Values of the words of which numbers below a hundred consist."""
_FACTORS = ("hundred", "thousand")
_DENOMINATORS = {
    "half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourth": 4, "fourths": 4,
    "fifth": 5, "fifths": 5, "sixth": 6, "sixths": 6, "eighth": 8, "eighths": 8, "tenth": 10, "tenths": 10,
}  # fmt: skip
MAX_PLAIN_CHARS = 60
"""Longest number that is compared at once. Characters."""
_LIST_LIKE = re.compile(r"\d{3}(?:,\d{3})+")


def cleaned(text: str) -> str:
    r"""Returns a text in one LaTeX spelling, with single spaces; numbers keep no separators of thousands.

    >>> cleaned(r"$\dfrac{1}{2}$."), cleaned("1\u202f½"), cleaned(r"\left(1{,}000\right)"), cleaned("x²≥ π")
    ('\\frac{1}{2}', '1 \\frac{1}{2}', '(1000)', 'x^{2}\\ge \\pi')
    """
    text = _ascii(text)
    text = _without_dollars(text)
    text = _GROUPED.sub(lambda match: match[1] + re.sub(r"\D", "", match[2]), text)
    text = _DROPPED.sub(lambda match: " " if match[0][1:2].isalpha() else "", text)
    for pattern, replacement in _SYNONYMS:
        text = re.sub(pattern, replacement, text)
    text = _with_digits(_SPACES.sub(" ", text).strip())
    while text and (text[-1] in ",;:." and not text.endswith("\\ldots")):
        text = text[:-1].rstrip()
    return _without_separators(text)


def _with_digits(text: str) -> str:
    r"""Returns a text of words alone with a number at its beginning in digits.

    >>> _with_digits("twenty-one"), _with_digits("one hundred and five days"), _with_digits("two thirds")
    ('21', '105\\text{ days}', '\\frac{2}{3}')
    """
    match = _WORDS.fullmatch(text)
    words = re.split(r"[ -]+", match[0].strip().casefold()) if match else []
    sign = "-" if words[:1] in (["negative"], ["minus"]) else ""
    words = words[len(sign) :]
    value = total = at = 0
    while at < len(words) and (words[at] in NUMBERS or (at and words[at] in (*_FACTORS, "and"))):
        if words[at] in NUMBERS:
            if value % 100 and not (value % 10 == 0 and value % 100 >= 20 and NUMBERS[words[at]] < 10):
                return text  # two numbers, such as "one two"
            value += NUMBERS[words[at]]
        elif words[at] == "and" and words[at - 1] not in _FACTORS:
            break
        elif words[at] == "hundred":
            value *= 100
        elif words[at] == "thousand":
            if total:
                return text
            total, value = 1000 * value, 0
        at += 1
    if not at:
        return text
    rest = " ".join(words[at:])
    if rest in _DENOMINATORS:
        return f"{sign}\\frac{{{total + value}}}{{{_DENOMINATORS[rest]}}}"
    return f"{sign}{total + value}\\text{{ {rest}}}" if rest else f"{sign}{total + value}"


def list_spelling(text: str) -> str | None:
    """Returns a text whose commas may separate thousands or items with the second meaning, None for other texts.

    >>> list_spelling("100,200,300"), list_spelling("1,234")
    ('100, 200, 300', None)
    """
    stripped = text.strip().strip("$")
    return stripped.replace(",", ", ") if _LIST_LIKE.fullmatch(stripped) else None


def unit_spelling(text: str) -> str | None:
    r"""Returns a plain number with letters behind it as a number with a text, None for other texts.

    >>> unit_spelling("5 m/s"), unit_spelling("x+1")
    ('5\\text{m/s}', None)
    """
    match = _PLAIN_UNIT.fullmatch(text.strip().strip("$"))
    return f"{match[1]}\\text{{{match[2]}}}" if match else None


def bare(text: str) -> str:
    r"""Returns a text without spaces, text commands and grouping, to compare texts as such.

    >>> bare(r"3\text{ red}") == bare("3 red"), bare("1 2") == bare("12"), bare("{x}_{1}") == bare("x_1")
    (True, False, True)
    """
    text = _TEXT_COMMAND.sub(r" \1 ", cleaned(text))
    text = _SPACED_EXPONENT.sub(r"\1*\2", text)
    text = re.sub(r"(?<!\\)\{(\w)\}", r"\1", text)
    return re.sub(r"(?<!\d) +| +(?!\d)", "", text).strip()


def plain_number(text: str) -> Fraction | None:
    r"""Returns the value of a bare text that is an integer or a fraction of two, None for any other text.

    >>> plain_number(r"-\frac{1}{2}"), plain_number("1/2"), plain_number("0.5")
    (Fraction(-1, 2), Fraction(1, 2), None)
    """
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is None or len(text) > MAX_PLAIN_CHARS:
        return None
    over, under = match[2] or match[4], match[3] or match[5] or "1"
    if int(under) == 0:
        return None
    return Fraction(-int(over) if match[1] == "-" else int(over), int(under))


def _without_separators(text: str) -> str:
    """Returns a text that holds one number without its spaces or commas between thousands."""
    spaced = _SPACED.fullmatch(text)
    if spaced and "(" not in spaced[1]:
        text = spaced[1] + spaced[2] + spaced[3].replace(" ", "") + (spaced[4] or "") + spaced[5]
    commas = _COMMAS.fullmatch(text)
    return commas[1] + commas[2].replace(",", "") + commas[3] if commas else text


def _without_dollars(text: str) -> str:
    r"""Returns a text without the marks of mathematics; signs of money become a word."""
    text = text.replace("\\$", "\\text{dollar}")
    if text.count("$") % 2:  # a sign of money, not a mark
        return text.replace("$", "\\text{dollar}", 1).replace("$", "")
    return text.replace("$", " ")


def _ascii(text: str) -> str:
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{_plain(match[0])}}}", text)
    text = _SUBSCRIPT.sub(lambda match: f"_{{{_plain(match[0])}}}", text)
    if text.isascii():
        return text
    text = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)
    return "".join(char if char.isascii() else _spelled(char) for char in text)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")


@cache
def _spelled(char: str) -> str:
    """Returns the LaTeX of a character that is not ASCII."""
    if char in _CHARACTERS:
        return _CHARACTERS[char]
    parts = unicodedata.decomposition(char).split()
    if parts and parts[0] == "<fraction>":
        over, _, under = "".join(chr(int(code, 16)) for code in parts[1:]).partition("\N{FRACTION SLASH}")
        return f"\\frac{{{over}}}{{{under}}}"
    greek = _GREEK.fullmatch(unicodedata.name(char, ""))
    if greek:
        name = greek[2].lower().replace("lamda", "lambda")
        return f"\\{name.capitalize() if greek[1] == 'CAPITAL' else name} "
    return unicodedata.normalize("NFKC", char)
