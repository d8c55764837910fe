"""Elements of a page: tests read states, numbers and addresses from elements, not from the text of whole pages."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx

VOID_TAGS = frozenset(("input", "meta", "link", "br", "hr", "img", "wbr"))
"""Tags without an end tag. SVG tags close themselves."""

INLINE_TAGS = frozenset(("a", "bdi", "code", "em", "kbd", "output", "small", "span", "strong", "time"))
"""Tags whose text joins the text around them without a space."""

SELECTOR = re.compile(
    r"(?P<tag>[\w-]+)|\.(?P<class>[\w-]+)|#(?P<id>[\w-]+)|\[(?P<name>[\w-]+)(?:=(?P<value>[^\]]*))?\]"
)


@dataclass(slots=True, eq=False)
class Element:
    """An element of a page with its attributes and children."""

    tag: str
    attributes: dict[str, str]
    children: "list[Element | str]" = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]

    def __contains__(self, name: str) -> bool:
        return name in self.attributes

    @property
    def text(self) -> str:
        """Text of the element and its descendants, with single spaces."""
        return " ".join(self.raw_text.split())

    @property
    def tone(self) -> str:
        """State class of the element: `good`, `warn`, `bad`, or another value of `data-tone`."""
        return self.attributes.get("data-tone", "")

    @property
    def numbers(self) -> list[float]:
        """Numbers in the element's text, in their order."""
        return [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", self.text)]

    @property
    def classes(self) -> list[str]:
        """Classes of the element."""
        return self.attributes.get("class", "").split()

    def all(self, selector: str) -> "list[Element]":
        """Returns the descendants that match the selector, in the order of the page.

        selector: tag, `.class`, `#id`, `[name]` and `[name=value]`, joined without spaces: `tr.total[data-tone=bad]`.
        """
        return [element for element in self._elements() if element.matches(selector)]

    def one(self, selector: str) -> "Element":
        """Returns the only descendant that matches the selector."""
        elements = self.all(selector)
        assert len(elements) == 1, f"{len(elements)} elements match {selector}"
        return elements[0]

    def has(self, selector: str) -> bool:
        """True if a descendant matches the selector."""
        return any(element.matches(selector) for element in self._elements())

    def texts(self, selector: str) -> list[str]:
        """Returns the texts of the descendants that match the selector."""
        return [element.text for element in self.all(selector)]

    def links(self, tag: str = "a") -> list[str]:
        """Returns the addresses of the links."""
        return [element["href"] for element in self.all(f"{tag}[href]")]

    def rows(self) -> list[list[str]]:
        """Returns the cell texts of the body rows of the element's tables."""
        rows = [row for body in self.all("tbody") for row in body.all("tr")]
        return [[cell.text for cell in row._elements() if cell.tag in ("th", "td")] for row in rows]

    def facts(self) -> dict[str, str]:
        """Returns the descriptions of the element's description lists by term."""
        return dict(zip(self.texts("dt"), self.texts("dd"), strict=True))

    def fields(self) -> dict[str, str]:
        """Returns the values of the element's inputs by name."""
        return {field["name"]: field.attributes.get("value", "") for field in self.all("input[name]")}

    def commands(self) -> list[list[str]]:
        """Returns the commands that the element shows, each as its words."""
        return [line.split() for block in self.all("pre.command") for line in block.raw_text.splitlines()]

    @property
    def raw_text(self) -> str:
        """Text of the element and its descendants with its line breaks."""
        return "".join(self._texts())

    def matches(self, selector: str) -> bool:
        """True if the element matches the selector."""
        assert SELECTOR.sub("", selector) == "", f"cannot read the selector {selector!r}"
        return all(self._matches(part) for part in SELECTOR.finditer(selector))

    def _matches(self, part: re.Match[str]) -> bool:
        if part["tag"]:
            return self.tag == part["tag"]
        if part["class"]:
            return part["class"] in self.classes
        if part["id"]:
            return self.attributes.get("id") == part["id"]
        return part["name"] in self.attributes and part["value"] in (None, self.attributes[part["name"]])

    def _elements(self) -> "Iterator[Element]":
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child._elements()

    def _texts(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, Element):
                gap = "" if child.tag in INLINE_TAGS else " "
                yield from (gap, *child._texts(), gap)
            else:
                yield child


class _Parser(HTMLParser):
    """Builds the tree of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("page", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = self._add(tag, attrs)
        if tag not in VOID_TAGS:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        for depth in range(len(self._open) - 1, 0, -1):
            if self._open[depth].tag == tag:
                del self._open[depth:]
                return

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def _add(self, tag: str, attrs: list[tuple[str, str | None]]) -> Element:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        return element


def parsed(page: str | httpx.Response) -> Element:
    """Returns the tree of a page or of a fragment."""
    parser = _Parser()
    parser.feed(page if isinstance(page, str) else page.text)
    parser.close()
    return parser.root


async def notice_after(client: httpx.AsyncClient, answer: httpx.Response) -> Element:
    """Returns the notice on the page after an action: its tone, the error's `data-code`, and its undo form."""
    assert answer.status_code == 303, answer.text
    return parsed(await client.get(answer.headers["location"])).one("#flash")
