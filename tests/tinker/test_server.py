"""The server as clients see it: futures, tenants, checkpoints, refusals and restarts."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.tinker import samplers, service
from astraflow.tinker.base_models import SharedBase
from astraflow.wire.pb import tinker_pb2 as pb
from tests.tinker.client import Client, datum, logprobs_of, sentence, tensor
from tests.tinker.conftest import Serving

pytestmark = pytest.mark.anyio

UNKNOWN = "tinker.unknown"


async def steps(client: Client, model: str, count: int, *, seed: int = 0) -> list[list[list[float]]]:
    """Trains; returns the logprobs before each step."""
    history = []
    for number in range(count):
        history.append(logprobs_of(await client.train(model, sentence(seed + number))))
        assert (await client.step(model))["metrics"]["grad_norm:mean"] > 0
    return history


async def test_two_tenants_train_at_once_as_each_alone(serving: Serving, tmp_path: Path) -> None:
    async with serving(tmp_path / "alone") as (_, ann, _bob):
        alone = await steps(ann, await ann.create(rank=4), 3)
    async with serving(tmp_path / "both") as (_, ann, bob):
        first, second = await ann.create(rank=4), await bob.create(rank=7, seed=9)
        together: list[list[list[float]]] = []
        for number in range(3):  # both are sent before either is read
            sent = [await ann.send_passes(first, sentence(number)), await bob.send_passes(second, sentence(50))]
            futures = [response.json()["request_id"] for response in sent]
            together.append(logprobs_of(await ann.result(futures[0])))
            await bob.result(futures[1])
            await ann.step(first)
            await bob.step(second)
    assert together == alone


async def test_requests_sent_again_get_the_same_future_and_passed_numbers_are_refused(serving: Serving) -> None:
    async with serving() as (_, ann, _bob):
        model = await ann.create()
        first = (await ann.send_passes(model, sentence(0))).json()
        ann.numbers[model] -= 1
        assert (await ann.send_passes(model, sentence(1))).json() == first
        await ann.step(model)
        ann.numbers[model] = 0
        late = await ann.refusal("optim_step", model_id=model, seq_id=1, adam_params={})
        assert late[:2] == (422, "tinker.number_in_use")
        ann.numbers[model] = 8
        await ann.step(model)
        assert (await ann.refusal("optim_step", model_id=model, seq_id=5, adam_params={}))[
            1
        ] == "tinker.sequence_passed"


async def test_a_killed_server_continues_with_the_gradient_and_answers_what_was_accepted(
    serving: Serving, tmp_path: Path
) -> None:
    async with serving(tmp_path / "whole") as (_, ann, _bob):
        expected = await steps(ann, await ann.create(), 3)
    async with serving(tmp_path / "first") as (server, ann, _bob):
        model = await ann.create()
        history = await steps(ann, model, 2)
        history.append(logprobs_of(await ann.train(model, sentence(2))))
        server._executor.close()
        pending = (
            await ann.post(
                "optim_step", model_id=model, seq_id=ann.next_number(model), adam_params={"learning_rate": 0.01}
            )
        )["request_id"]
        answered = (await ann.send_passes(model, sentence(3))).json()["request_id"]
        shutil.copytree(tmp_path / "first", tmp_path / "second")  # what a killed process leaves
        key = ann.http.headers["X-API-Key"]
    assert history == expected
    async with serving(tmp_path / "second") as (_, again, _bob):
        assert again.http.headers["X-API-Key"] == key
        assert (await again.result(pending))["metrics"]["grad_norm:mean"] > 0
        resumed = logprobs_of(await again.result(answered))
    async with serving(tmp_path / "reference") as (_, ann, _bob):
        model = await ann.create()
        await steps(ann, model, 3)
        assert logprobs_of(await ann.train(model, sentence(3))) == resumed


async def test_a_checkpoint_continues_with_and_without_its_optimizer(serving: Serving) -> None:
    async with serving() as (_, ann, bob):
        model = await ann.create()
        await steps(ann, model, 2)
        saved = (await ann.call("save_weights", model, path="two"))["path"]
        assert (await ann.refusal("save_weights", model_id=model, seq_id=99, path="two"))[
            1
        ] == "tinker.checkpoint_exists"
        for number, optimizer in enumerate((True, False), start=1):
            future = await ann.post(
                "load_weights", session_id=ann.session, model_seq_id=number, path=saved, optimizer=optimizer
            )
            assert (await ann.result(future["request_id"]))["model_id"] == f"{ann.session}:train:{number}"
        copy, fresh = (f"{ann.session}:train:{number}" for number in (1, 2))
        after = {name: await steps(ann, name, 2, seed=7) for name in (model, copy, fresh)}
        assert after[copy] == after[model]
        assert after[fresh][0] == after[model][0]
        assert after[fresh][1] != after[model][1]
        info = await ann.post("weights_info", tinker_path=saved)
        assert (info["base_model"], info["lora_rank"], info["train_mlp"]) == ("tiny", 4, True)
        assert (await bob.refusal("weights_info", tinker_path=saved))[:2] == (404, "tinker.unknown")
        listed = (await ann.http.get("checkpoints")).json()["checkpoints"]
        assert [row["tinker_path"] for row in listed] == [saved]
        assert (await ann.http.delete(f"training_runs/{model}/checkpoints/weights/two")).status_code == 204
        assert (await ann.http.get("checkpoints")).json()["cursor"]["total_count"] == 0
        runs = (await ann.http.get("training_runs")).json()["training_runs"]
        assert {run["training_run_id"] for run in runs} == {model, copy, fresh}


async def test_models_above_the_limit_leave_memory_and_come_back(serving: Serving, tmp_path: Path) -> None:
    async with serving(tmp_path / "a", max_models=1) as (server, ann, _bob):
        first, second = await ann.create(0), await ann.create(1)
        begun = await steps(ann, first, 1)
        await ann.train(first, sentence(1))
        await ann.train(second, sentence(0))
        assert list(server._loaded) == [second]
        await ann.step(first)
        rest = logprobs_of(await ann.train(first, sentence(2)))
        assert list(server._loaded) == [first]
        await ann.result((await ann.post("unload_model", model_id=first))["request_id"])
        assert list(server._loaded) == []
    async with serving(tmp_path / "b") as (_, ann, _bob):
        model = await ann.create()
        whole = await steps(ann, model, 2)
        assert whole[0] == begun[0]
        assert logprobs_of(await ann.train(model, sentence(2))) == rest


async def test_a_model_with_pending_requests_is_not_unloaded(serving: Serving) -> None:
    async with serving() as (server, ann, _bob):
        model = await ann.create()
        server._executor.close()
        await ann.send_passes(model, sentence(0))
        assert (await ann.refusal("unload_model", model_id=model))[:2] == (429, "tinker.model_busy")


async def test_a_state_that_cannot_be_written_fails_the_model_until_a_restart(serving: Serving, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, ann, bob):
        model, other = await ann.create(), await bob.create()
        states = tmp_path / "tenants" / "ann" / "models" / model / "states"
        states.parent.mkdir(parents=True)
        states.write_text("in the way")
        await ann.train(model, sentence(0))
        assert (await ann.step(model))["category"] == "server"
        assert "tinker.state_unusable" in (await ann.step(model))["error"]
        await steps(bob, other, 1)
        states.unlink()
        history = await steps(bob, other, 2)
        shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    async with serving(tmp_path / "copy") as (_, again, _bob):
        again.numbers[model] = ann.numbers[model]
        assert (await again.step(model))["metrics"]["grad_norm:mean"] > 0  # with the passes since the last state
    assert len(history) == 2


async def sampler_of(client: Client, number: int = 1, **source: Any) -> str:
    body = {"session_id": client.session, "sampling_session_seq_id": number, **source}
    sampler: str = (await client.post("create_sampling_session", **body))["sampling_session_id"]
    return sampler


async def test_samples_come_from_the_saved_weights_with_the_logprobs_that_training_computes(serving: Serving) -> None:
    async with serving() as (_, ann, _bob):
        model = await ann.create()
        await steps(ann, model, 2)
        saved = await ann.call("save_weights_for_sampler", model, sampling_session_seq_id=0)
        sampler = saved["sampling_session_id"]
        response = await ann.sample(sampler, 0, num_samples=3, prompt_logprobs=True, topk_prompt_logprobs=2)
        tokens = [np.frombuffer(sequence.tokens, "<i4").tolist() for sequence in response.sequences]
        logprobs = [np.frombuffer(sequence.logprobs, "<f4") for sequence in response.sequences]
        whole = [[5, 6, 7, *sampled] for sampled in tokens]
        scored = logprobs_of(await ann.train(model, [datum(text[:-1], target_tokens=text[1:]) for text in whole]))
        for row, sampled in zip(scored, logprobs, strict=True):
            np.testing.assert_allclose(row[2:], sampled, atol=1e-4)
        prompt = np.frombuffer(response.prompt_logprobs, "<f4")
        assert np.isnan(prompt[0])
        np.testing.assert_allclose(prompt[1:], scored[0][:2], atol=1e-4)
        top = np.frombuffer(response.topk_prompt_logprobs.logprobs, "<f4").reshape(3, 2)
        assert (top[0] == -99999.0).all()
        assert (top[1:, 0] >= top[1:, 1]).all()
        base = await ann.sample(await sampler_of(ann, base_model="tiny"), 0, prompt_logprobs=True)
        assert base.prompt_logprobs != response.prompt_logprobs


async def test_weights_saved_again_for_a_sampler_replace_those_in_memory(serving: Serving) -> None:
    async with serving() as (_, ann, _bob):
        model = await ann.create()
        scores = []
        for number in range(2):
            await steps(ann, model, 1)
            saved = await ann.call("save_weights_for_sampler", model, sampling_session_seq_id=0)
            sampled = await ann.sample(saved["sampling_session_id"], number, prompt_logprobs=True)
            scores.append(np.frombuffer(sampled.prompt_logprobs, "<f4")[1:])
        (expected,) = logprobs_of(await ann.train(model, [datum([5, 6], target_tokens=[6, 7])]))
        np.testing.assert_allclose(scores[1], expected, atol=1e-4)
        assert (scores[0] != scores[1]).all()


async def test_old_snapshots_of_a_session_are_deleted_and_a_finished_session_has_none(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "KEPT_SNAPSHOTS", 2)
    async with serving(tmp_path) as (_, ann, _bob):
        model = await ann.create()
        for number in range(4):
            await ann.call("save_weights_for_sampler", model, sampling_session_seq_id=number)
        kept = [f"{ann.session}:sample:{number}" for number in (2, 3)]
        assert sorted(folder.name for folder in (tmp_path / "tenants" / "ann" / "samplers").iterdir()) == kept
        await ann.sample(kept[0], 0)
        await ann.post(f"sessions/{ann.session}/finish", reason={"type": "success"})
        assert list((tmp_path / "tenants" / "ann" / "samplers").iterdir()) == []


async def test_seeds_stops_and_greedy_sampling(serving: Serving) -> None:
    async with serving() as (_, ann, _bob):
        sampler = await sampler_of(ann, base_model="tiny")

        async def texts(number: int, **params: Any) -> list[list[int]]:
            response = await ann.sample(sampler, number, num_samples=2, sampling_params={"max_tokens": 6, **params})
            return [np.frombuffer(sequence.tokens, "<i4").tolist() for sequence in response.sequences]

        seeded = await texts(0, seed=3)
        assert seeded == await texts(1, seed=3)
        assert seeded[0] != seeded[1]
        greedy = await texts(2, temperature=0.0)
        assert greedy[0] == greedy[1]
        stopped = await texts(3, temperature=0.0, stop=[greedy[0][1]])
        assert stopped[0] == greedy[0][: greedy[0].index(greedy[0][1]) + 1]
        await ann.post(
            "asample",
            sampling_session_id=sampler,
            seq_id=9,
            num_samples=2,
            prompt={"chunks": [{"tokens": [5]}]},
            sampling_params={"max_tokens": 60, "stop": []},
            prompt_logprobs=True,
            topk_prompt_logprobs=2,
        )
        assert (await ann.http.post("cancel_future", json={"request_id": f"{sampler}:9"})).status_code == 200
        cancelled = pb.SampleResponse.FromString(await ann.result(f"{sampler}:9"))
        assert len(cancelled.sequences) == 2
        assert np.isnan(np.frombuffer(cancelled.prompt_logprobs, "<f4")).tolist() == [True]  # of the only token
        assert np.frombuffer(cancelled.topk_prompt_logprobs.logprobs, "<f4").tolist() == [-99999.0] * 2


PROMPT = {"chunks": [{"tokens": [5, 6], "type": "encoded_text"}]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_alt_tokens_k", 2),
        ("record_stability_info", True),
        ("model_path", "tinker://x"),
        ("target_prompt_logprobs", {"data": []}),
        ("num_samples", 0),
        ("topk_sample_logprobs", 65),
        ("unheard_of", 1),
        ("prompt", {"chunks": [{"data": "", "format": "png", "type": "image"}]}),
        ("prompt", {"chunks": [{"tokens": [128]}]}),
        ("prompt", {"chunks": []}),
        ("prompt", {"chunks": [{"tokens": [5] * 64}]}),
        ("sampling_params", {"temperature": -1}),
        ("sampling_params", {"stop": [""]}),
    ],
)
async def test_fields_that_are_not_served_or_invalid_are_refused_by_their_names(
    serving: Serving, field: str, value: Any
) -> None:
    async with serving() as (_, ann, _bob):
        sampler = await sampler_of(ann, base_model="tiny")
        body = {"sampling_session_id": sampler, "seq_id": 0, "prompt": PROMPT, "sampling_params": {}, field: value}
        status, code, message = await ann.refusal("asample", **body)
        assert status == 422
        assert code in ("config.invalid", "tinker.invalid_field", "tinker.context_exceeded")
        assert field in message or code == "tinker.context_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("create_model", {"base_model": "huge"}, "tinker.unknown_base_model"),
        ("create_model", {"lora_config": {"rank": 65}}, "tinker.rank_too_high"),
        ("create_model", {"lora_config": {"rank": 4, "train_mlp": False, "train_attn": False}}, "tinker.no_targets"),
        ("create_model", {"lora_config": {"rank": 0}}, "config.invalid"),
        ("create_model", {"lora_config": None}, "config.invalid"),
        ("create_model", {"optimizer_config": {"type": "dimuon"}}, "config.invalid"),
        ("create_model", {"session_id": "session-of-nobody"}, "tinker.unknown"),
        ("load_weights", {"path": "tinker://../../etc", "optimizer": True}, "config.invalid"),
        ("get_info", {"model_id": "m:train:0"}, "config.invalid"),
        ("copy_weights", {}, "tinker.endpoint_not_served"),
        ("retrieve_futures", {}, "tinker.endpoint_not_served"),
    ],
)
async def test_requests_that_cannot_be_served_are_refused(
    serving: Serving, path: str, body: dict[str, Any], code: str
) -> None:
    async with serving() as (_, ann, _bob):
        values = {
            "session_id": ann.session,
            "model_seq_id": 0,
            "base_model": "tiny",
            "lora_config": {"rank": 4},
            **body,
        }
        assert (await ann.refusal(path, **values))[1] == code


async def test_a_sampler_needs_one_source_of_its_weights(serving: Serving) -> None:
    async with serving() as (_, ann, _bob):
        nothing = await ann.refusal("create_sampling_session", session_id=ann.session, sampling_session_seq_id=0)
        assert nothing[:2] == (422, "config.invalid")
        assert "give base_model or model_path" in nothing[2]
        model = await ann.create()
        for body in ({}, {"path": "a", "sampling_session_seq_id": 1}):
            refused = await ann.refusal("save_weights_for_sampler", model_id=model, seq_id=1, **body)
            assert refused[:2] == (422, "config.invalid")
            assert "give either path or sampling_session_seq_id" in refused[2]


async def test_what_a_tenant_owns_is_unknown_to_others(serving: Serving) -> None:
    async with serving() as (_, ann, bob):
        model = await ann.create()
        future = (await ann.send_passes(model, sentence(0))).json()["request_id"]
        sampler = await sampler_of(ann, base_model="tiny")
        bob.numbers[model] = 1
        refused = [
            await bob.refusal("get_info", model_id=model),
            await bob.refusal("retrieve_future", request_id=future),
            await bob.refusal("cancel_future", request_id=future),
            await bob.refusal("session_heartbeat", session_id=ann.session),
            await bob.refusal("optim_step", model_id=model, seq_id=2, adam_params={}),
            await bob.refusal("asample", sampling_session_id=sampler, seq_id=0, prompt=PROMPT, sampling_params={}),
        ]
        assert {each[:2] for each in refused} == {(404, "tinker.unknown")}
        assert (await bob.send_passes(model, sentence(0))).status_code == 404
        bob.http.headers["X-API-Key"] = "tml-wrong"
        assert (await bob.refusal("get_info", model_id=model))[:2] == (401, "tinker.unknown_key")
        assert (await bob.http.get("healthz")).json() == {"status": "ok"}


async def test_bad_data_of_a_tenant_leaves_its_model_and_others_as_they_are(serving: Serving) -> None:
    async with serving() as (_, ann, bob):
        model, other = await ann.create(), await bob.create()
        expected = logprobs_of(await bob.train(other, sentence(0)))
        cases = [
            datum([5, 6], target_tokens=[6, 7], weights=[np.nan, 1.0]),
            datum([5] * 65, target_tokens=[6] * 65),
            datum([5, 200], target_tokens=[6, 7]),
        ]
        for number, data in enumerate(cases):
            response = await ann.send_passes(model, [data])
            assert (response.status_code, response.json()["code"]) == (422, "tinker.invalid_field"), number
            ann.numbers[model] -= 1
        oversized = [datum([5] * 60, target_tokens=[6] * 60) for _ in range(200)]
        assert (await ann.send_passes(model, oversized)).json()["code"] == "tinker.request_too_large"
        ann.numbers[model] -= 1
        extreme = {"logprobs": [-3e38] * 2, "advantages": [3e38] * 2}
        failed = await ann.train(model, [datum([5, 6], target_tokens=[6, 7], **extreme)], "importance_sampling")
        assert failed["category"] == "user"
        assert "tinker.non_finite_loss" in failed["error"]
        assert logprobs_of(await ann.train(model, sentence(0))) == expected
        assert (await bob.step(other))["metrics"] == (await ann.step(model))["metrics"]


async def test_tokens_are_counted_and_end_with_the_quota(serving: Serving) -> None:
    async with serving(max_tokens=100) as (server, ann, bob):
        model = await ann.create()
        await ann.train(model, sentence(0, length=20, count=2))
        assert server._store.tokens("ann") == 3 * 40 + 1  # a backward pass costs two forward passes
        response = await ann.send_passes(model, sentence(0))
        assert (response.status_code, response.json()["code"]) == (403, "tinker.quota_exhausted")
        await bob.train(await bob.create(), sentence(0))


async def test_too_many_waiting_requests_are_refused_until_some_are_answered(serving: Serving) -> None:
    async with serving(max_waiting=1) as (server, ann, _bob):
        model = await ann.create()
        server._executor.close()
        await ann.send_passes(model, sentence(0))
        response = await ann.send_passes(model, sentence(1))
        assert (response.status_code, response.json()["code"]) == (429, "tinker.too_many_requests")


async def test_results_are_protobuf_only_and_bodies_are_what_they_say(serving: Serving) -> None:
    async with serving() as (_, ann, _bob):
        model = await ann.create()
        future = (await ann.send_passes(model, sentence(0))).json()["request_id"]
        await ann.result(future)
        plain = await ann.http.post("retrieve_future", json={"request_id": future})
        assert (plain.status_code, plain.json()["code"]) == (406, "tinker.protobuf_only")
        assert (await ann.refusal("forward_backward", model_id=model))[:2] == (422, "tinker.not_protobuf")
        for content in (b"[]", b"{", b"[" * 50_000):
            response = await ann.http.post("get_info", content=content)
            assert (response.status_code, response.json()["code"]) == (422, "tinker.not_json")


async def test_actions_and_refusals_are_audited(serving: Serving, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, ann, bob):
        model = await ann.create()
        await ann.call("save_weights", model, path="one")
        await bob.refusal("get_info", model_id=model)
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert any('"tenant": "ann", "action": "save_weights"' in line and model in line for line in lines)
    assert any('"tenant": "bob"' in line and '"refused": "tinker.unknown"' in line for line in lines)


async def test_targets_of_several_tokens_are_answered_in_their_shape(serving: Serving, base: SharedBase) -> None:
    async with serving() as (_, ann, _bob):
        model = await ann.create()
        wide = datum([5, 6, 7], target_tokens=[[6, 9], [7, 9], [8, 9]])
        answer = pb.ForwardBackwardOutput.FromString(await ann.train(model, [wide, *sentence(0, count=1)]))
        shapes = [tuple(record.fields["logprobs"].trailing_shape) for record in answer.loss_fn_outputs]
        assert shapes == [(2,), ()]
        narrow = [datum([5, 6, 7], target_tokens=column) for column in ([6, 7, 8], [9, 9, 9])]
        expected = np.array(logprobs_of(await ann.train(model, narrow))).T
        values = np.frombuffer(answer.loss_fn_outputs[0].fields["logprobs"].data, "<f4").reshape(3, 2)
        np.testing.assert_allclose(values, expected, atol=1e-5)
        assert tensor([1]).shape == [1]


async def test_a_tenant_above_its_disk_limit_saves_nothing_more_until_it_deletes(
    serving: Serving, tmp_path: Path
) -> None:
    async with serving(tmp_path, max_disk_bytes=1) as (_, ann, bob):
        model = await ann.create()
        await ann.train(model, sentence(0))
        assert "path" in await ann.call("save_weights", model, path="one")
        for path, body in (
            ("save_weights", {"path": "two"}),
            ("save_weights_for_sampler", {"sampling_session_seq_id": 0}),
            ("optim_step", {"adam_params": {}}),  # its first state would be added
        ):
            refused = await ann.call(path, model, **body)
            assert refused["category"] == "user"
            assert "tinker.disk_full" in refused["error"]
        assert [path.name for path in (tmp_path / "tenants" / "ann" / "models" / model).iterdir()] == ["weights"]
        assert (await bob.step(await bob.create()))["metrics"]

    async with serving(tmp_path / "more", max_disk_bytes=100_000) as (_, ann, _bob):
        model = await ann.create(rank=1)
        await steps(ann, model, 1)
        names = [str(number) for number in range(8)]
        saved = [await ann.call("save_weights", model, path=name) for name in names]
        refused = [name for name, answer in zip(names, saved, strict=True) if "error" in answer]
        assert refused == names[-len(refused) :] != names
        assert (await ann.http.delete(f"training_runs/{model}/checkpoints/weights/0")).status_code == 204
        assert (await ann.call("save_weights", model, path="again"))["path"].endswith("again")
        assert len(await steps(ann, model, 2)) == 2  # a state replaces the one before


async def test_a_closed_session_leaves_its_checkpoints_only(serving: Serving, tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, ann, bob):
        model = await ann.create()
        await steps(ann, model, 1)
        saved = (await ann.call("save_weights", model, path="one"))["path"]
        pending = (await ann.send_passes(model, sentence(0))).json()["request_id"]
        assert (await bob.http.post(f"sessions/{ann.session}/finish", json={})).status_code == 404
        for _ in range(2):
            assert (await ann.http.post(f"sessions/{ann.session}/finish", json={})).status_code == 200
        assert logprobs_of(await ann.result(pending))
        assert (await ann.refusal("optim_step", model_id=model, seq_id=9, adam_params={}))[:2] == (404, UNKNOWN)
        assert server.catalogue.overview("ann")["models"] == []
        ann.session = (await ann.post("create_session"))["session_id"]
        copy = await ann.post("load_weights", session_id=ann.session, model_seq_id=0, path=saved, optimizer=True)
        assert (await ann.result(copy["request_id"]))["path"] == saved
        assert [path.name for path in (tmp_path / "tenants" / "ann" / "models" / model).iterdir()] == ["weights"]


async def test_a_server_that_ends_before_it_deletes_a_closed_session_does_so_at_its_start(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (server, ann, _bob):
        model = await ann.create()
        await steps(ann, model, 1)
        server._executor.close()
        await ann.http.post(f"sessions/{ann.session}/finish", json={})
        states = tmp_path / "tenants" / "ann" / "models" / model / "states"
        assert states.exists()
    async with serving(tmp_path) as (_, ann, _bob):
        await steps(ann, await ann.create(), 1)
        assert not states.exists()
        monkeypatch.setattr(service, "SILENT_S", -1.0)
        silent = ann.session
        await ann.post("create_session")
        assert (await ann.refusal("session_heartbeat", session_id=silent))[1] == UNKNOWN


async def test_the_page_shows_tenants_to_the_operator_and_a_tenant_itself(serving: Serving, tmp_path: Path) -> None:
    async with serving(tmp_path, max_tokens=9000) as (server, ann, bob):
        model = await ann.create(rank=3)
        await steps(ann, model, 2)
        await bob.create()
        loss = server.catalogue.overview("ann")["models"][0]["loss"]
        page = ann.http.base_url.copy_with(path="/")
        keys = [(tmp_path / name).read_text().strip() for name in ("operator-key", "keys/ann", "keys/bob")]
        texts = [(await ann.http.get(page, auth=("any", key))).text for key in keys]
        assert [("ann</h2>" in text, "bob</h2>" in text) for text in texts] == [
            (True, True),
            (True, False),
            (False, True),
        ]
        assert model in texts[1]
        assert '<td class="number">3</td><td class="number">2</td>\n<td class="number">0</td>' in texts[1]
        assert f"{loss:.6g}" in texts[1]
        assert "of 9,000 tokens used" in texts[1]
        for header in ({}, {"Authorization": "Basic %%"}, {"Authorization": "Bearer x"}):
            refused = await ann.http.get(page, headers=header)
            assert (refused.status_code, "ann" in refused.text) == (401, False)
            assert refused.headers["WWW-Authenticate"].startswith("Basic")
