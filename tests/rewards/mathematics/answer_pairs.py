r"""Correct answers with equal and different spellings, by the rule that they show."""

from typing import NamedTuple


class Row(NamedTuple):
    """A correct answer, answers that equal it, and answers that do not."""

    gold: str
    equal: tuple[str, ...]
    different: tuple[str, ...]


ROWS: dict[str, tuple[Row, ...]] = {
    "integers": (
        Row("96", ("96", "96.0", "096", "+96", "$96$", "2^5 \\cdot 3", "100-4", "n=96", "\\text{96}"), ("69", "960", "9.6", "9 6", "96^2", "96x", "96!")),
        Row("-8", ("-8", "- 8", "\N{MINUS SIGN}8", "\N{EN DASH}8", "-(8)", "4-12"), ("8", "-18", "-0.8")),
        Row("720", ("6!", "720\\text{ ways}", "8\\cdot 90=720"), ("6!!", "702", "8 \\cdot 90 = 702", "720\\text{ thousand}")),
    ),
    "exact fractions": (
        Row("\\frac{5}{8}", ("5/8", "\\tfrac58", "\\dfrac{5}{8}", "0.625", "\\frac{10}{16}", "5\\over 8", "\\frac 5 8", "62.5\\%", "{5 \\over 8}", "-\\frac{-5}{8}"), ("\\frac85", "0.62", "58", "\\frac{5}{9}", "5:9")),
        Row("\\frac{1}{3^{70}}", ("3^{-70}", "(3^{70})^{-1}"), ("\\frac{1}{3^{71}}", "0", "0.0", "3^{-69}")),
        Row("\\frac{1}{900!}", ("(900!)^{-1}",), ("\\frac{1}{901!}", "0")),
        Row("\\frac{98765431}{12345679}", ("\\frac{197530862}{24691358}",), ("\\frac{98765433}{12345679}", "8")),
        Row("1", ("\\frac{7}{7}", "0.99999999"), ("\\frac{9999999}{10000000}", "1.00001", "1+2^{-80}", "0.999")),
    ),
    "mixed numbers": (
        Row("3\\frac{2}{5}", ("3 2/5", "\\frac{17}{5}", "3.4", "3\\tfrac25"), ("\\frac{6}{5}", "3\\cdot\\frac{2}{5}", "\\frac{2}{5}")),
        Row("6", ("6",), ("2 3/1", "6 1/4", "3 4/2")),
        Row("-1\\frac{1}{4}", ("-1.25", "-\\frac54"), ("-\\frac{3}{4}", "1\\frac14")),
    ),
    "decimals": (
        Row("2.75", ("2.75", "2.750", "\\frac{11}{4}", "2\\frac34"), ("2.7", "2.76", "27.5", "275")),
        Row("\\sqrt{7}", ("7^{1/2}", "2.645751", "2.6457513", "√7"), ("2.6457", "2.65", "\\sqrt{8}", "7")),
        Row("0.\\overline{36}", ("\\frac{4}{11}", "0.\\overline{3636}", "0.363636\\ldots"), ("0.36", "0.3\\overline{6}", "\\frac{36}{100}")),
        Row("500000", ("500000.0",), ("500000.1", "500001")),
        Row("0", ("0.0", "-0", "\\sin\\pi", "\\ln 1"), ("10^{-9}", "1e-12", "0.0000001", "e^{-90}")),
    ),
    "scientific notation": (
        Row("7.2e-21", ("7.2\\times10^{-21}", "7.2E-21", "7.20 \\cdot 10^{-21}", "7.2*10^{-21} \\text{ J}", "72\\times 10^{-22}"), ("7.3e-21", "7.2e-20", "7.2e21", "0", "7.2e - 21", "7.2")),
        Row("5e9", ("5000000000", "5\\times10^9", "5 \\times 10^{9}\\text{ m}", "5,000,000,000"), ("5e8", "45e", "5e\\cdot 9", "59")),
        Row("8.1\\times10^{14}", ("8.1e14", "810000000000000"), ("8.1\\times10^{15}", "8.1", "9.1e14")),
    ),
    "thousands": (
        Row("48,300", ("48300", "48{,}300", "48\\,300", "48 300", "\\$48,300"), ("48.3", "48,3", "300", "4830")),
        Row("2,345,678", ("2345678", "2{,}345{,}678"), ("678", "2345")),
        Row("150, 250, 350", ("150,250,350", "350, 250, 150"), ("150250350", "150, 250")),
    ),
    "units": (
        Row("12\\text{ kg}", ("12", "12kg", "12\\,\\mathrm{kg}", "12 kilograms", "12000\\text{ g}"), ("12\\text{ g}", "12\\text{ m}", "12\\text{ kg}^2", "13\\text{ kg}")),
        Row("7\\text{ AM}", ("7\\text{ am}", "7 \\text{ a.m.}", "7:00 AM", "7"), ("7\\text{ PM}", "8\\text{ AM}")),
        Row("18", ("18\\text{ cm}", "18\\ \\mathrm{ft/s}", "\\$18", "18 \\text{ red balls}"), ("18\\text{ million}", "18\\text{ dozen}", "18\\text{ percent of }9", "18k", "18\\text{ or }19")),
        Row("11\\,\\mathrm{km/h}", ("11 km/h", "11\\,\\frac{\\text{km}}{\\text{h}}", "11\\text{ kilometers per hour}", "11\\,\\mathrm{km\\,h^{-1}}"), ("11\\,\\mathrm{m/s}", "11\\,\\mathrm{km}", "11\\,\\mathrm{km/h^2}", "11\\text{ mph}")),
        Row("16\\pi\\text{ m}^2", ("16\\pi", "16\\pi\\text{ square meters}", "16 \\pi \\text{ sq m}"), ("16", "16\\pi\\text{ m}", "16\\pi\\text{ cm}^2", "\\pi")),
        Row("6\\text{ feet }2\\text{ inches}", ("6'2\"", "74\\text{ inches}", "6\\text{ ft }2\\text{ in}"), ("2\\text{ feet }6\\text{ inches}", "12", "8")),
        Row("\\$7.25", ("7.25", "7.25\\text{ dollars}", "725\\text{ cents}"), ("7.25\\text{ cents}", "\\$72.5", "\\$7.52")),
    ),
    "percentages and angles": (
        Row("15\\%", ("15", "0.15", "\\frac{3}{20}", "15\\text{ percent}"), ("1.5", "0.015", "15^\\circ", "150")),
        Row("0.3", ("30\\%", "\\frac{3}{10}"), ("0.3\\%", "3\\%", "30")),
        Row("72", ("72\\%", "72^\\circ"), ("0.72", "72^\\circ 30'")),
        Row("45^\\circ", ("45", "45°", "45\\degree", "45\\text{ degrees}", "\\frac{\\pi}{4}"), ("45\\%", "45\\text{ radians}", "54^\\circ", "45\\pi")),
        Row("\\sin 10^\\circ", ("\\cos 80^\\circ", "\\sin(10^{\\circ})", "\\sin\\frac{\\pi}{18}"), ("\\sin 10", "\\cos 10^\\circ")),
    ),
    "ratios and times": (
        Row("2:5", ("2 : 5", "2\\text{ to }5", "\\frac{2}{5}", "4:10"), ("5:2", "2:3", "25")),
        Row("4:2:1", ("4 : 2 : 1", "8:4:2"), ("1:2:4", "4:2", "16:4:1")),
        Row("8:45\\text{ p.m.}", ("8:45 PM", "8\\text{:}45\\text{ pm}", "8:45"), ("8:45\\text{ a.m.}", "8:54\\text{ p.m.}", "9:45\\text{ p.m.}")),
        Row("6:30", ("6:30",), ("1:5", "6:03", "30:6")),
    ),
    "sets and lists": (
        Row("\\{2,5,9\\}", ("\\{9, 2, 5\\}", "2,5,9", "x\\in\\{2,5,9\\}", "\\{2,2,5,9\\}", "2, 5, \\text{ and } 9"), ("\\{2,5\\}", "(2,5,9)", "\\{2,5,8\\}", "259")),
        Row("-2, 6", ("6, -2", "x=-2, x=6", "x=6\\text{ or }x=-2", "\\{-2,6\\}", "x_1=-2,\\ x_2=6"), ("-2", "2, 6", "-26", "-2,-6")),
        Row("\\pm 5", ("5, -5", "x=\\pm5", "\\{-5,5\\}", "\\mp 5"), ("5", "\\pm 6")),
        Row("2\\pm\\sqrt{3}", ("2+\\sqrt3, 2-\\sqrt3", "x=2\\pm\\sqrt3"), ("2+\\sqrt{3}", "3\\pm\\sqrt{2}")),
        Row("\\emptyset", ("\\varnothing", "\\{\\}", "∅"), ("0", "\\{0\\}", "\\{\\emptyset\\}")),
        Row("1,4,9,\\ldots", ("1, 4, 9, \\dots", "1,4,9,..."), ("9,4,1,\\ldots", "1,4,9")),
        Row("\\{(1,0),(0,1)\\}", ("(0,1),(1,0)", "(1,0)\\text{ and }(0,1)"), ("1,0,0,1", "\\{(1,1),(0,0)\\}", "(1,0)")),
    ),
    "tuples and vectors": (
        Row("(4,-7)", ("(4, -7)", "\\left(4,-7\\right)", "(x,y)=(4,-7)", "x=4, y=-7", "\\langle 4,-7\\rangle", "4,-7"), ("(-7,4)", "(4,7)", "[4,-7]", "\\{4,-7\\}", "-28", "(4,-7,0)")),
        Row("(p,q,r)=(5,6,7)", ("(5,6,7)", "p=5,q=6,r=7"), ("(7,6,5)", "18", "(5,6)")),
        Row("\\langle 1,2,3\\rangle", ("(1,2,3)", "\\begin{pmatrix}1\\\\2\\\\3\\end{pmatrix}"), ("\\langle 1,2\\rangle", "\\langle 3,2,1\\rangle")),
        Row("3\\mathbf{i}-\\mathbf{j}", ("-\\mathbf{j}+3\\mathbf{i}", "3\\hat{i}-\\hat{j}", "3i-j"), ("3\\mathbf{i}+\\mathbf{j}", "\\mathbf{i}-3\\mathbf{j}")),
        Row("\\begin{pmatrix} 4 & 1 \\\\ -3 & 0 \\end{pmatrix}", ("\\begin{bmatrix}4&1\\\\-3&0\\end{bmatrix}",), ("\\begin{pmatrix}4&-3\\\\1&0\\end{pmatrix}", "3", "(4,1,-3,0)")),
    ),
    "intervals": (
        Row("(-\\infty,5]", ("x\\le5", "5\\ge x", "x\\in(-\\infty,5]", "\\{x\\mid x\\le 5\\}", "\\{t : t \\le 5\\}"), ("(-\\infty,5)", "x<5", "[5,\\infty)", "x\\ge 5")),
        Row("[-1,2)\\cup(2,6]", ("(2,6]\\cup[-1,2)", "[-1,2) U (2,6]"), ("[-1,6]", "[-1,2]\\cup[2,6]", "[-1,2)")),
        Row("1<x<\\frac{7}{2}", ("(1,3.5)", "\\frac72>x>1", "x>1\\text{ and }x<3.5"), ("1\\le x<\\frac72", "(1,4)", "x>1")),
        Row("x<-2\\text{ or }x>4", ("(-\\infty,-2)\\cup(4,\\infty)", "x>4\\text{ or }x<-2", "x<-2, x>4"), ("-2<x<4", "x<-2", "x\\le-2\\text{ or }x\\ge4")),
        Row("(0,1)\\cup\\{4\\}", ("\\{4\\}\\cup(0,1)",), ("(0,4]", "(0,1)")),
        Row("\\mathbb{R}\\setminus\\{3\\}", ("x\\ne3", "(-\\infty,3)\\cup(3,\\infty)"), ("\\mathbb{R}", "x\\ne 4")),
        Row("x>2", ("3x>6", "2<x"), ("x>3", "x<2", "-x>-2")),
    ),
    "expressions": (
        Row("x^3-1", ("(x-1)(x^2+x+1)", "-1+x^3", "x**3 - 1", "x\\cdot x^2-1"), ("x^3+1", "(x-1)^3", "x^2-1", "X^3-1")),
        Row("\\frac{k(k+1)}{2}", ("\\binom{k+1}{2}", "\\frac12k^2+\\frac12k", "\\sum_{j=1}^{k} j"), ("\\frac{k(k-1)}{2}", "\\frac{k}{2}")),
        Row("3^{n+2}", ("9\\cdot 3^n",), ("3^n+2", "3n+2", "3^{n+1}")),
        Row("(-1)^n", ("(-1)^{n+2}", "\\cos(\\pi n)"), ("-1", "1", "(-1)^{n+1}")),
        Row("|y-2|", ("|2-y|", "\\sqrt{(y-2)^2}"), ("y-2", "|y+2|")),
        Row("\\lfloor m/3\\rfloor", ("\\left\\lfloor\\frac m3\\right\\rfloor",), ("\\frac m3", "\\lceil m/3\\rceil")),
        Row("\\tan^2 t", ("\\sec^2 t-1", "\\frac{\\sin^2 t}{\\cos^2 t}"), ("\\tan t", "\\tan t^2")),
        Row("2\\sqrt{a}", ("2a^{1/2}", "\\sqrt{4a}"), ("\\sqrt{2a}", "2a")),
        Row("x^4+C", ("C+x^4", "x^4+c"), ("x^4", "x^3+C")),
        Row("e^{3t}", ("\\exp(3t)", "(e^t)^3"), ("e^{t^3}", "3e^t", "t^{3e}")),
        Row("\\arctan 2", ("\\tan^{-1}(2)",), ("\\frac{1}{\\tan 2}", "\\tan 2")),
        Row("\\log_3 5", ("\\frac{\\ln 5}{\\ln 3}", "\\frac{1}{\\log_5 3}"), ("\\log_5 3", "1.46", "\\log 5")),
        Row("4-5i", ("-5i+4",), ("4+5i", "5-4i", "-1")),
        Row("\\gcd(m,n)", ("\\gcd(n,m)",), ("\\text{lcm}(m,n)", "mn", "m")),
        Row("\\sqrt5+\\sqrt6", ("\\sqrt{11+2\\sqrt{30}}",), ("4.68556", "\\sqrt{11}", "\\sqrt{21.9544511501}")),
        Row("a_{n+1}", ("a_{n+1}",), ("a_n", "a_{n-1}", "a_n+1")),
    ),
    "large numbers": (
        Row("3^{1500}+1", ("1+3^{1500}",), ("3^{1500}", "3^{1500}-1", "3^{1501}+1")),
        Row("10^{30}+7", ("1000000000000000000000000000007",), ("10^{30}", "1000000000000000000000000000008")),
        Row("\\binom{80}{40}", ("\\frac{80!}{40!40!}", "\\frac{80!}{(40!)^2}", "{80 \\choose 40}", "C(80,40)"), ("\\binom{80}{39}", "2")),
        Row("10^{10^{9}}", ("10^{10^9}",), ("10^{10^{9}}+1", "10^{10^{8}}")),
    ),
    "equations": (
        Row("3x-2y+5=0", ("6x-4y=-10", "y=\\frac32x+\\frac52", "-3x+2y-5=0"), ("3x+2y+5=0", "3x-2y=5")),
        Row("x^2+(y-1)^2=16", ("x^2+y^2-2y-15=0",), ("x^2+(y+1)^2=16", "x^2+(y-1)^2=4")),
        Row("y=x^3", ("x^3=y", "y-x^3=0", "x^3", "f(x)=x^3"), ("x=y^3", "y=x^2", "y^3=x")),
        Row("t=9", ("9", "t=9", "9=t"), ("s=9", "t=8", "t>9")),
        Row("g(x)=4x-1", ("4x-1", "g(x)=-1+4x", "y=4x-1"), ("g(x)=4x+1", "h(x)=4x-1")),
        Row("b_n=3^n", ("3^n",), ("b_n=n^3", "3n")),
        Row("x\\equiv 4 \\pmod 9", ("x \\equiv 4\\pmod{9}", "x\\equiv 13 \\pmod 9"), ("x\\equiv 5 \\pmod 9", "x\\equiv 4 \\pmod 8", "4")),
        Row("P>Q>R", ("R<Q<P",), ("Q>P>R", "R>Q>P")),
        Row("xy=6", ("y=\\frac{6}{x}",), ("y=6x", "xy=-6")),
        Row("f(x)=\\begin{cases}1&x>0\\\\2&x\\le0\\end{cases}", ("f(x)=\\begin{cases}2&x\\le0\\\\1&\\text{if }x>0\\end{cases}",), ("f(x)=\\begin{cases}2&x>0\\\\1&x\\le0\\end{cases}", "1")),
    ),
    "words and other forms": (
        Row("\\text{Wednesday}", ("Wednesday", "\\textbf{wednesday}", "\\mathrm{Wednesday}"), ("\\text{Thursday}", "\\text{not Wednesday}")),
        Row("\\text{listen}", ("listen",), ("silent", "\\text{enlist}")),
        Row("\\textbf{(D)}", ("D", "(D)", "\\text{D}", "d", "\\textbf{(D)}\\ 17"), ("C", "\\text{D or E}", "(C)")),
        Row("\\text{B, D}", ("D, B", "\\text{B and D}"), ("B", "B, C", "BD")),
        Row("\\text{II and IV only}", ("II and IV", "\\text{II, IV}"), ("\\text{II and III only}", "\\text{IV}")),
        Row("5\\text{R}2", ("5 R 2", "5\\text{ remainder }2"), ("2\\text{R}5", "10R", "5")),
        Row("\\text{May }9", ("May 9", "\\text{May 9th}"), ("\\text{May }19", "\\text{June }9", "9")),
        Row("4\\text{ cats and }7\\text{ dogs}", ("7 dogs and 4 cats",), ("7\\text{ cats and }4\\text{ dogs}", "28", "4\\text{ cats}")),
        Row("2\\text{ out of }9", ("2 out of 9",), ("9\\text{ out of }2", "18")),
        Row("\\text{does not exist}", ("\\text{DNE}", "does not exist"), ("0", "\\infty")),
        Row("(2\\ 4\\ 3)", ("(4\\ 3\\ 2)", "(2 4 3)"), ("(2\\ 3\\ 4)", "(2\\ 4)(3)", "24")),
        Row("110_2", ("110_{2}", "110_{\\text{two}}", "(110)_2", "110"), ("110_3", "6", "101_2")),
    ),
    "styles": (
        Row("14", ("\\color{red}{14}", "\\textcolor{blue}{14}", "\\mathsf{14}", "\\bold{14}", "\\underline{14}", "\\boxed{14}", "\\displaystyle 14", "14\\;", "\uff11\uff14"), ("\\underline{15}", "41")),
        Row("\\frac{\\pi}{8}", ("pi/8", "\\pi/8", "\\frac18\\pi", "π/8"), ("p/8", "\\frac{8}{\\pi}", "0.39")),
        Row("\\frac{\\sqrt{2}}{3}", ("sqrt(2)/3", "√2/3", "\\nicefrac{\\sqrt2}{3}"), ("2/3", "\\sqrt{\\frac23}")),
    ),
}  # fmt: skip
