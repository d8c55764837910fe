"""Questions about generated facts, which only a search in the corpus of these facts can answer.

People work for companies and were born in towns; companies are based in towns; towns lie in countries at rivers. All
names are invented. A question follows one relation, or two: "In which country is the town where Amra Velkano was born?"
"""

import random
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from pydantic import Field, model_validator

from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.datasets import datasets
from astraflow.datasets.base import ANSWER, QUESTION, GeneratedDataset, check_index
from astraflow.runtime.config.base import Config

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfghklmnprst" for vowel in "aeo")
_STEP = 7919
"""Distance of consecutive names in the numbering of all names: a prime without a common factor with their number."""
_GIVEN_NAMES = (
    "Amra",
    "Bela",
    "Cato",
    "Dina",
    "Edda",
    "Faro",
    "Gita",
    "Hugo",
    "Inka",
    "Joris",
    "Kaja",
    "Lino",
    "Mika",
    "Nora",
    "Olek",
    "Pia",
    "Remo",
    "Sina",
    "Tove",
    "Ulla",
)
_ENDINGS = {"person": "no", "company": "dyne", "town": "burg", "country": "land", "river": "brook"}


class FactOptions(Config):
    """Corpus of generated facts."""

    entities: int = Field(default=1000, ge=10, le=5_000_000)
    """Documents: a third each of people, companies and towns."""
    seed: int = 0
    """Another seed gives other names and other facts."""
    syllables: int = Field(default=4, ge=2, le=4)
    """Length of a name, without its ending; short names are easier to copy for a small model."""

    @property
    def names_per_kind(self) -> int:
        """Number of different names for people, and for each other kind."""
        return int(len(_SYLLABLES) ** self.syllables)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.entities // 3 > self.names_per_kind:
            raise ValueError(
                f"{self.entities} entities need {self.entities // 3} names of a kind, and names of {self.syllables} "
                f"syllables are only {self.names_per_kind}; give fewer entities or more syllables"
            )
        return self


class FactQuestionOptions(Config):
    """Questions, and the corpus that answers them."""

    size: int = Field(default=1000, ge=1)
    """Number of questions."""
    hops: int = Field(default=2, ge=1, le=2)
    """Facts that an answer needs."""
    facts: FactOptions = FactOptions()
    """Corpus; the search must have the same corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Document about one entity."""

    title: str
    url: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactQuestion:
    """A question with its answer, and the entities whose pages state the facts."""

    question: str
    answer: str
    entities: tuple[int, ...]


class FactWorld:
    """Facts by the number of their entity: each follows from the options and the number alone."""

    def __init__(self, options: FactOptions) -> None:
        self._seed = options.seed
        self._third = options.entities // 3
        self._syllables, self._names = options.syllables, options.names_per_kind
        self._offsets = {kind: random.Random(f"{options.seed}/{kind}").randrange(self._names) for kind in _ENDINGS}

    @property
    def entities(self) -> int:
        """Number of pages: first the people, then the companies, then the towns."""
        return 3 * self._third

    def page(self, entity: int) -> Page:
        """Returns the page about an entity."""
        kind, number = self._kind(entity)
        name = self._name(kind, number)
        if kind == "person":
            text = (
                f"{name} was born in {self._name('town', self.birthplace(number))}. "
                f"{name} works for {self._name('company', self.employer(number))}."
            )
        elif kind == "company":
            text = f"{name} is a company that is based in {self._name('town', self.base(number))}."
        else:
            text = f"{name} is a town in {self.country(number)}. The river {self.river(number)} flows through {name}."
        return Page(title=name, url=f"https://facts.example/{kind}/{number}", text=text)

    def question(self, index: int, hops: int) -> FactQuestion:
        """Returns question number `index`."""
        rng = random.Random(f"facts/{self._seed}/{index}")
        person = rng.randrange(self._third)
        name = self._name("person", person)
        birthplace, employer = self.birthplace(person), self.employer(person)
        town, company = 2 * self._third + birthplace, self._third + employer
        one_hop = [
            (f"In which town was {name} born?", self._name("town", birthplace), (person,)),
            (f"Which company does {name} work for?", self._name("company", employer), (person,)),
        ]
        two_hops = [
            (f"In which country is the town where {name} was born?", self.country(birthplace), (person, town)),
            (f"Which river flows through the town where {name} was born?", self.river(birthplace), (person, town)),
            (
                f"In which town is the company based that {name} works for?",
                self._name("town", self.base(employer)),
                (person, company),
            ),
        ]
        question, answer, entities = rng.choice(one_hop if hops == 1 else two_hops)
        return FactQuestion(question=question, answer=answer, entities=entities)

    def birthplace(self, person: int) -> int:
        """Returns the number of the town where a person was born."""
        return self._draw("birthplace", person)

    def employer(self, person: int) -> int:
        """Returns the number of the company for which a person works."""
        return self._draw("employer", person)

    def base(self, company: int) -> int:
        """Returns the number of the town where a company is based."""
        return self._draw("base", company)

    def country(self, town: int) -> str:
        """Returns the country of a town; there are about a tenth as many as towns."""
        return self._name("country", self._draw("country", town) // 10)

    def river(self, town: int) -> str:
        return self._name("river", self._draw("river", town) // 2)

    def _draw(self, relation: str, number: int) -> int:
        digest = blake2b(f"{self._seed}/{relation}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self._third

    def _kind(self, entity: int) -> tuple[str, int]:
        check_index(entity, self.entities)
        return ("person", "company", "town")[entity // self._third], entity % self._third

    def _name(self, kind: str, number: int) -> str:
        """Returns a name that no other number of the kind has."""
        rest = (number * _STEP + self._offsets[kind]) % self._names
        syllables = []
        for _ in range(self._syllables):
            rest, digit = divmod(rest, len(_SYLLABLES))
            syllables.append(_SYLLABLES[digit])
        name = ("".join(syllables) + _ENDINGS[kind]).capitalize()
        return f"{_GIVEN_NAMES[number % len(_GIVEN_NAMES)]} {name}" if kind == "person" else name


@datasets.register("facts", options=FactQuestionOptions)
class Facts(GeneratedDataset):
    """Generated questions about invented facts, which only a search in the corpus of these facts can answer.

    Fields: question, answer, answers (the answer alone), pages (addresses of the documents with the facts).
    """

    def __init__(self, options: FactQuestionOptions, seed: int) -> None:
        super().__init__(options.size)
        self._options = options
        self._world = FactWorld(options.facts)
        self._order = random.Random(f"facts/order/{seed}").randrange(2**32)

    def _prompt(self, index: int) -> Prompt:
        fact = self._world.question(self._order + index, self._options.hops)
        fields: dict[str, Json] = {
            QUESTION: fact.question,
            ANSWER: fact.answer,
            "answers": [fact.answer],
            "pages": [self._world.page(entity).url for entity in fact.entities],
        }
        return Prompt(id=PromptId(f"facts:{index}"), fields=fields)
