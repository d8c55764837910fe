"""Dense retrieval with a real encoder: `python -m benchmarks.dense_search FOLDER`.

Prints the share of questions whose document is the first hit, by BM25 and by the encoder: each document answers one
question and says so in other words. Then milliseconds of an exact search among random vectors, without the encoder.
"""

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np

from astraflow.models.base import TextKind, embedders
from astraflow.search.base import Document
from astraflow.search.dense import nearest
from astraflow.search.index import build_index

PARAPHRASES = {
    "How do I repair a punctured bicycle tyre?": "Remove the inner tube, find the leak, and glue a patch on it.",
    "Why is my infant crying at night?": "Babies often wake after dark because they are hungry or want to be held.",
    "What is the cheapest way to fly to Rome?": "Low-cost airlines sell inexpensive tickets to Italy's capital.",
    "How can I stop smoking?": "Nicotine patches and counselling help people to give up cigarettes.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci's portrait of Lisa Gherardini hangs in the Louvre.",
    "Best food for a dog with allergies": "Canines that itch often tolerate kibble made of fish and potatoes.",
    "How tall is the highest mountain?": "Everest rises 8,849 metres above sea level.",
    "My laptop does not turn on": "If the notebook computer stays dark, check its battery and power supply.",
    "Symptoms of a heart attack": "Cardiac arrest is announced by chest pain, sweating and short breath.",
    "How do I become a physician?": "Doctors study medicine for six years and then work in a hospital.",
    "How to save money on heating": "Insulate the attic and lower the thermostat to cut your gas bill.",
    "What do astronauts eat in space?": "Crews in orbit have freeze-dried meals that they mix with water.",
    "How can I learn to play the piano?": "Beginners at the keyboard practise scales for half an hour a day.",
    "When do leaves fall?": "Trees shed their foliage in autumn.",
    "Is coffee bad for you?": "Moderate amounts of caffeine do no harm to healthy adults.",
    "How do I get rid of mice?": "Seal every hole and set traps with peanut butter against rodents.",
    "What causes earthquakes?": "The ground shakes when tectonic plates slip past each other.",
    "How to write a job application": "A curriculum vitae and a short cover letter convince an employer.",
    "Why do I feel tired all the time?": "Constant exhaustion may come from too little sleep or a lack of iron.",
    "How do vaccines work?": "An inoculation teaches the immune system to recognise a virus.",
    "Where can I see wild elephants?": "Large herds of these tusked animals live in the parks of Botswana.",
    "How do I grow tomatoes?": "Plant the seedlings of this red fruit in full sun and water them daily.",
    "What is inflation?": "Prices rise over the years, so that a coin buys less.",
    "How does a refrigerator stay cold?": "A pump moves warmth out of the cooling box by evaporating a liquid.",
}


def hit_share(folder: str) -> tuple[float, float]:
    """Returns the share of first hits that are right, by BM25 and by the encoder."""
    documents = [
        Document(id=str(number), title="", url=str(number), text=text)
        for number, text in enumerate(PARAPHRASES.values())
    ]
    words = build_index(documents)
    document_ids = [next((hit.document.id for hit in words.search(question, 1)), "") for question in PARAPHRASES]
    encoder = embedders.build({"kind": "huggingface", "path": folder})
    vectors = encoder.embed(list(PARAPHRASES.values()), TextKind.DOCUMENT)
    rows, _ = nearest(encoder.embed(list(PARAPHRASES), TextKind.QUERY), vectors, 1)
    right = [str(number) for number in range(len(documents))]
    by_words = sum(document_id == expected for document_id, expected in zip(document_ids, right, strict=True))
    return by_words / len(right), float(np.mean(rows[:, 0] == np.arange(len(right))))


def search_ms(rows: int, width: int, queries: int) -> tuple[float, float]:
    """Returns the median and the longest time of a query among random vectors."""
    rng = np.random.default_rng(0)
    vectors, query_vectors = (rng.standard_normal((count, width), np.float32) for count in (rows, queries))
    times = []
    for query in query_vectors:
        began = perf_counter()
        nearest(query[None], vectors, 5)
        times.append(1000 * (perf_counter() - began))
    return float(np.median(times)), max(times)


def main(write: Callable[[str], object] = print) -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="folder of an encoder")
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    by_words, by_meaning = hit_share(arguments.folder)
    write(f"{len(PARAPHRASES)} questions, first hit right: BM25 {by_words:.0%}, encoder {by_meaning:.0%}")
    median, longest = search_ms(arguments.rows, 384, 20)
    write(f"{arguments.rows:,} vectors of 384 numbers: {median:.1f} ms a query, at most {longest:.1f} ms")


if __name__ == "__main__":
    main()
