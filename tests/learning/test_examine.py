"""Run doctor: each fault is found where it is, and not where it only seems to be."""

import re
import string
from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.learning_faults import STEP, LearningFault
from astraflow.contract.records import render
from astraflow.learning.examine import examine
from tests.learning.seeded_runs import FAULTY, NEARLY, facts_of, flat, healthy

SEEDS = (0, 1)


def test_the_library_has_every_fault() -> None:
    assert set(FAULTY) == set(NEARLY) == set(LearningFault)


@pytest.mark.parametrize("fault", LearningFault, ids=lambda fault: fault.value)
def test_a_fault_is_found_where_it_is_and_not_where_it_nearly_is(fault: LearningFault) -> None:
    for seed in SEEDS:
        records = {record.cause: record for record in examine(FAULTY[fault](np.random.default_rng(seed)))}
        assert fault.value in records
        text = render(records[fault.value])
        assert "?" not in text
        assert text.startswith(fault.headline)
        assert records[fault.value].severity is fault.severity
        assert fault.value not in [record.cause for record in examine(NEARLY[fault](np.random.default_rng(seed)))]


def test_templates_use_the_formats_of_records() -> None:
    for fault in LearningFault:
        for template in (fault.evidence, fault.threshold, fault.remedy):
            for _, name, spec, _ in string.Formatter().parse(template):
                assert not name or re.fullmatch(r"|(\.\d+)?[fg%]|[a-z ]+", spec or ""), (fault, name, spec)


def test_healthy_runs_have_no_fault() -> None:
    causes = [record.cause for seed in range(12) for record in examine(healthy(np.random.default_rng(seed)))]
    assert len(causes) <= 1


def test_a_fault_that_stays_keeps_its_first_step() -> None:
    facts = FAULTY[LearningFault.CLIPPED](np.random.default_rng(0))
    (early,) = examine(replace(facts, steps=facts.steps[:50]))
    (late,) = examine(facts, (early,))
    assert (early.values[STEP], late.values[STEP]) == (50, 50)


def test_urgent_faults_come_first() -> None:
    random = np.random.default_rng(0)
    facts = facts_of(random, clip_fraction=flat(random, 0.5, 0.01), skipped=np.ones(200))
    assert [record.cause for record in examine(facts)] == ["updates_skipped", "clipped"]


def test_a_run_without_steps_or_metrics_has_no_fault() -> None:
    facts = facts_of(np.random.default_rng(0))
    assert examine(replace(facts, steps=())) == ()
    bare = tuple(replace(step, metrics={}) for step in facts.steps)
    assert examine(replace(facts, steps=bare, groups=(), rollouts=())) == ()


def test_a_policy_that_trains_on_answers_is_not_judged_by_rewards() -> None:
    random = np.random.default_rng(0)
    facts = facts_of(random, flat(random, 1.0, 0.0), nll=flat(random, 0.5, 0.01), entropy=np.linspace(3, 0.001, 200))
    assert examine(facts) == ()


def test_metrics_that_are_not_finite_are_left_out() -> None:
    random = np.random.default_rng(0)
    broken = np.full(200, np.nan)
    assert examine(facts_of(random, entropy=broken, grad_norm=broken, mismatch_k3=broken, tokens_mean=broken)) == ()
