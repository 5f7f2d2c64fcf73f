# SPDX-License-Identifier: Apache-2.0
"""``penstock finetune`` from the outside, on the emulated GPU: the same losses as plain PyTorch."""

from __future__ import annotations

import gc
import importlib.util
import json
import re

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from verbs import called, result_of

from penstock import attachments
from penstock.finetune.data import IGNORED, Synthetic
from penstock.finetune.engine import Engine
from penstock.finetune.loop import Loop
from penstock.models.checkpoint import shipped_checkpoint

FROZEN = {
    "model": str,
    "strategy": str,
    "allocator": str,
    "loss": list,
    "step_ms": list,
    "peak_requested_bytes": int,
    "peak_active_bytes": int,
    "peak_reserved_bytes": int,
    "utilisation": float,
    "tokens_per_second": float,
}
TINY = ["--model", "tiny", "--device", "emulated", "--batch", "2", "--seq-len", "16"]
STEPS, LR = 4, 1e-3
LEARN = ["--steps", STEPS, "--lr", LR]
TEXT = "\n\n".join(f"def f{n}(x):\n    return x + {n}  # adds {n}" * (1 + n % 5) for n in range(24))


@pytest.fixture(autouse=True)
def a_small_emulated_gpu(own_folder, monkeypatch):
    monkeypatch.setenv("PENSTOCK_EMULATED_GRANULARITY", "16KiB")
    yield
    assert attachments() == []


def finetune(capsys, *arguments):
    """Run the verb in this process; its exit code, stdout and stderr."""
    return called(capsys, "finetune", *arguments)


def finetune_json(capsys, *arguments):
    return result_of(capsys, "finetune", *arguments)


def refused(capsys, code, *arguments):
    """Run what must be refused; its error and its remedy."""
    found, out, err = finetune(capsys, *arguments)
    assert (found, out) == (code, ""), err
    lines = err.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("error: "))
    return "\n".join(lines[at:])


def plain_pytorch(*, lora=False, dtype=torch.float32, batch=2, length=16, steps=STEPS):
    """What the verb should give, written out: transformers, peft, torch.optim and nothing else."""
    config = transformers.GPT2Config(
        **{"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 512},
        **{"bos_token_id": 0, "eos_token_id": 0, "use_cache": False},
    )
    torch.manual_seed(0)
    kept = torch.bfloat16 if lora and dtype == torch.bfloat16 else torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=kept)
    if lora:
        options = {"r": 64, "lora_alpha": 128, "lora_dropout": 0.0}
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", **options))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR)
    source = Synthetic(512, length, varied=False, seed=0)
    torch.manual_seed(1)
    losses = []
    for step in range(steps):
        tokens = source.batch(step, batch).tokens
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# ---- What comes out ---------------------------------------------------------------------------


def test_json_has_the_promised_keys_first_and_in_order(capsys):
    result = finetune_json(capsys, *TINY, *LEARN)
    assert list(result)[: len(FROZEN)] == list(FROZEN)
    for key, kind in FROZEN.items():
        assert isinstance(result[key], kind), key
    assert (result["model"], result["strategy"], result["allocator"]) == ("tiny", "N", "stitch")
    assert len(result["loss"]) == len(result["step_ms"]) == STEPS
    assert 0 < result["peak_requested_bytes"] <= result["peak_active_bytes"]
    assert result["peak_active_bytes"] <= result["peak_reserved_bytes"]
    share = result["peak_requested_bytes"] / result["peak_reserved_bytes"]
    assert result["utilisation"] == pytest.approx(share)
    # Weights, gradients and two moments of 191,040 fp32 parameters are there at one moment.
    assert result["peak_requested_bytes"] > 4 * 4 * result["parameters"]
    assert result["memory_figures"] == "replayed"
    assert result["tokens_per_second"] == pytest.approx(32 * 2 / sum(result["step_ms"][2:]) * 1e3)
    assert (result["memory"], result["engine"], result["gpus"]) == ("resident", "single", 1)


def test_full_collections_leave_out_what_was_there_before_the_steps(capsys, monkeypatch):
    frozen, run = [], Loop.run

    def seen(self):
        frozen.append(gc.get_freeze_count())
        run(self)

    monkeypatch.setattr(Loop, "run", seen)
    finetune_json(capsys, *TINY, *LEARN)
    assert len(frozen) == 1
    assert frozen[0] > 100_000
    assert gc.get_freeze_count() == 0


def test_text_for_people(capsys):
    code, out, err = finetune(capsys, *TINY, "--steps", "1", "--strategy", "LR")
    assert code == 0
    assert out.startswith("tiny, LR, 2 x 16 tokens a step, stitch on the emulated GPU\n")
    for name in ("parameters ", "loss ", "step ", "requested ", "reserved "):
        assert f"\n{name}" in out
    assert "training: 100%, loss 6." in err


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
@pytest.mark.parametrize("strategy", ["N", "R", "L", "LR"])
def test_the_loss_curve_is_that_of_plain_pytorch(strategy, dtype, capsys):
    result = finetune_json(capsys, *TINY, *LEARN, "--strategy", strategy, "--dtype", dtype)
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    wanted = plain_pytorch(lora="L" in strategy, dtype=kind)
    tolerance = 1e-6 if dtype == "float32" else 1e-3  # fused AdamW rounds otherwise
    assert result["loss"] == pytest.approx(wanted, abs=tolerance)
    assert len(set(result["loss"])) == STEPS


@pytest.mark.parametrize("strategy", ["N", "O", "RO", "LO", "LRO"])
def test_beyond_the_budget_the_loss_curve_is_the_same_bit_for_bit(strategy, capsys):
    small = [*TINY[:-4], "--batch", "1", "--seq-len", "8", *LEARN, "--dtype", "float32"]
    paged = finetune_json(capsys, *small, "--strategy", strategy, "--gpu-memory", "1MiB")
    resident = strategy.replace("O", "") or "N"
    assert paged["loss"] == finetune_json(capsys, *small, "--strategy", resident)["loss"]
    assert (paged["memory"], paged["strategy"]) == ("paged", strategy)
    assert paged["counters"]["peak_device_bytes"] <= 1 << 20
    assert min(paged["bytes_in"]) > 0
    assert min(paged["bytes_out"]) > 0


@pytest.mark.slow
def test_recomputation_and_adapters_need_less(capsys):
    work = [*TINY[:-4], "--batch", "8", "--seq-len", "128", "--steps", "2"]
    peaks = {
        strategy: finetune_json(capsys, *work, "--strategy", strategy)["peak_requested_bytes"]
        for strategy in ("N", "R", "LR")
    }
    assert peaks["R"] < 0.8 * peaks["N"]
    assert peaks["LR"] < 0.8 * peaks["N"]


@pytest.mark.slow
def test_allocators_reserve_differently_for_the_same_work(capsys):
    work = [*TINY[:-4], *("--batch", "16", "--seq-len", "128", "--steps", "2", "--strategy", "R")]
    work += ["--lengths", "varied", "--allocator"]
    found = {name: finetune_json(capsys, *work, name) for name in ("native", "stitch")}
    assert found["native"]["loss"] == found["stitch"]["loss"]
    assert len({length for _, length in found["native"]["step_shapes"]}) > 1
    reserved = {name: result["peak_reserved_bytes"] for name, result in found.items()}
    assert reserved["stitch"] < 0.9 * reserved["native"]
    # Between the two is a budget that one of them keeps to.
    budget = ["--memory", "resident", "--gpu-memory", sum(reserved.values()) // 2]
    assert finetune(capsys, *work, "stitch", *budget)[0] == 0
    assert "does not fit" in refused(capsys, 4, *work, "native", *budget)


# ---- Text -------------------------------------------------------------------------------------


def tuned(tmp_path, *more):
    """A checkpoint with a tokenizer, and a text."""
    (tmp_path / "text.txt").write_text(TEXT)
    model = ["--model", shipped_checkpoint(), "--device", "emulated", "--seq-len", "200"]
    return [*model, "--batch", "4", "--data", "text.txt", *more]


@pytest.mark.slow
def test_a_checkpoint_learns_a_text_and_an_evaluation_sees_it(capsys, tmp_path):
    (tmp_path / "held.jsonl").write_text(json.dumps({"body": TEXT[:400]}) + "\n")
    work = tuned(tmp_path, "--eval-every", "4", "--eval-data", "text.txt", "--lr", "1e-3")
    result = finetune_json(capsys, *work, "--steps", "8", "--strategy", "R")
    assert [each["step"] for each in result["evaluations"]] == [4, 8]
    assert result["evaluations"][1]["loss"] < result["evaluations"][0]["loss"] < result["loss"][0]
    assert result["model"] == shipped_checkpoint().name
    lengths = {tokens for _, tokens in result["step_shapes"]}
    assert len(lengths) > 1
    assert max(lengths) <= 200


def test_an_evaluation_is_the_mean_over_tokens(capsys, tmp_path):
    lines = [{"body": TEXT[:90]}, {"body": TEXT[90:400]}, {"body": TEXT[400:420]}]
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (tmp_path / "one.jsonl").write_text(json.dumps({"body": TEXT[:64]}))
    folder = shipped_checkpoint()
    work = ["--model", folder, "--device", "emulated", "--dtype", "float32", "--lr", "1e-9"]
    work += ["--data", "one.jsonl", "--data-field", "body", "--eval-data", "held.jsonl"]
    result = finetune_json(capsys, *work, "--eval-every", "1", "--steps", "1", "--batch", "2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    total = count = 0
    for line in lines:
        ids = [*tokenizer(line["body"])["input_ids"], tokenizer.eos_token_id]
        for at in range(0, len(ids), 256):
            piece = torch.tensor([ids[at : at + 256]])
            with torch.no_grad():
                logits = model(piece).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(logits, piece[0, 1:], reduction="sum")
            count += piece.shape[1] - 1
    assert result["evaluations"][0]["loss"] == pytest.approx(float(total) / count, rel=1e-4)


@pytest.mark.slow
def test_evaluating_changes_nothing_of_the_training(capsys):
    with_it = finetune_json(capsys, *TINY, *LEARN, "--eval-every", "1")
    assert with_it["loss"] == finetune_json(capsys, *TINY, *LEARN)["loss"]
    paged = finetune_json(capsys, *TINY, *LEARN, "--eval-every", "1", "--gpu-memory", "1536KiB")
    assert (paged["memory"], paged["loss"]) == ("paged", with_it["loss"])
    assert paged["evaluations"] == with_it["evaluations"]
    assert [each["step"] for each in paged["evaluations"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ('{"text": 5}', "a.jsonl", "line 1 has no text in 'text' (there is text: int)"),
        ('{"text": "a b"}\n{"body": 1}', "a.jsonl", "line 2 has no text in 'text' (there is body"),
        ('[{"text": "a b"}]', "a.jsonl", "line 1 is not an object\n  try: one object a line"),
        ("{", "a.jsonl", "line 1 is not JSON"),
        ("[" * 100_000, "a.jsonl", "line 1 is not JSON"),
        (f'{{"text": {"9" * 5000}}}', "a.jsonl", "line 1 is not JSON"),
        ('{"text": "\\ud83d here"}', "a.jsonl", "line 1 has half of a letter in 'text'"),
        ("\n\n  \n\n", "a.txt", "holds no text"),
        (b"\xff\xfe\x00", "a.txt", "cannot be read"),
    ],
)
def test_files_that_hold_no_text(content, name, said, capsys, tmp_path):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    work = ["--model", shipped_checkpoint(), "--device", "emulated", "--data", name]
    assert said in refused(capsys, 1, *work)


def test_json_lines_as_other_systems_write_them(capsys, tmp_path):
    """With a byte order mark, ends of lines of two letters, and separators within a text."""
    line = json.dumps({"text": f"{TEXT[:40]}\u2028{TEXT[:40]}"}, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{line}\r\n{line}\r\n".encode())
    work = ["--model", shipped_checkpoint(), "--device", "emulated", "--data", "a.jsonl"]
    found = finetune_json(capsys, *work, "--steps", "1", "--batch", "1", "--seq-len", "8")
    assert len(found["loss"]) == 1


def test_a_checkpoint_without_its_tokenizer(capsys, tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((shipped_checkpoint() / name).read_bytes())
    (tmp_path / "text.txt").write_text(TEXT)
    work = ["--device", "emulated", "--model", folder, "--steps", "1", "--batch", "1"]
    error = refused(capsys, 1, *work, "--data", "text.txt")
    assert "has no tokenizer" in error
    assert "--data synthetic" in error
    assert finetune_json(capsys, *work, "--seq-len", "8")["model"] == "bare"
    (folder / "model.safetensors").write_bytes(b"not one")
    assert "model.safetensors cannot be read" in refused(capsys, 1, *work)
    (folder / "config.json").unlink()
    assert "holds no config.json" in refused(capsys, 1, *work)


# ---- Memory -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_that_cannot_fit_is_told_the_largest_that_does(capsys):
    work = [*TINY[:-4], "--seq-len", "128", "--memory", "resident", "--gpu-memory", "16MiB"]
    error = refused(capsys, 4, *work, "--batch", "16")
    assert "a step of 16 x 128 tokens does not fit into a budget of 16MiB" in error
    largest = int(error.split("the largest batch that does is ")[1].split()[0])
    assert error.endswith(f"try: --batch {largest}")
    assert 1 <= largest < 16
    fitting = finetune_json(capsys, *work, "--batch", largest, "--steps", "2")
    assert fitting["peak_reserved_bytes"] <= 16 << 20
    assert "does not fit" in refused(capsys, 4, *work, "--batch", largest + 1)


@pytest.mark.slow
def test_activations_that_cannot_fit_beside_the_pager(capsys):
    """What the steps that failed had made is let go of: it counts beside what is tried next."""
    work = [*TINY[:-4], "--seq-len", "64", "--strategy", "RO", "--gpu-memory", "4MiB"]
    error = refused(capsys, 4, *work, "--batch", "16")
    largest = int(error.split("the largest batch that does is ")[1].split()[0])
    error = refused(capsys, 4, *work, "--batch", "7")
    assert f"the largest batch that does is {largest}\n" in error
    finetune_json(capsys, *work, "--batch", largest, "--steps", "2")


def test_a_budget_below_one_chunk_has_a_remedy(capsys):
    what, remedy = refused(capsys, 4, *TINY, "--gpu-memory", "1KiB").splitlines()
    assert "a budget of 1.00 KiB is below the smallest that works" in what
    assert remedy == "  try: --gpu-memory 1MiB"


def test_a_backward_that_runs_out_of_memory_is_told_so(capsys):
    # The first layers of backward have been updated when there is no room for the next.
    error = refused(capsys, 4, *TINY, "--gpu-memory", "300KiB")
    assert "the budget of 300 KiB" in error
    assert re.search(r"need at least \d+ KiB", error)
    assert re.search(r"try: --gpu-memory \d+", error)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_where_nothing_fits_the_message_says_so(capsys):
    error = refused(capsys, 4, *TINY, "--memory", "resident", "--gpu-memory", "1MiB")
    assert "no smaller batch does" in error
    assert "--strategy with R" in error


@pytest.mark.slow
def test_the_largest_batch_is_found_and_trained_with(capsys):
    work = [*TINY[:-4], "--seq-len", "128", "--gpu-memory", "12MiB", "--steps", "2"]
    result = finetune_json(capsys, *work, "--find-batch", "--strategy", "R")
    assert result["batch"] == result["largest_batch"] > 1
    assert result["peak_reserved_bytes"] <= 12 << 20
    tries = {each["batch"]: each["fits"] for each in result["tries"]}
    assert tries[result["batch"]]
    assert not tries[result["batch"] + 1]
    # What was tried has left nothing behind: the losses are those of a run with that batch.
    again = finetune_json(capsys, *work[:-4], "--steps", "2", "--batch", result["batch"],
                          "--strategy", "R")  # fmt: skip
    assert again["loss"] == result["loss"]


# With LoRA, 64 tokens and the native allocator in 25 MiB 10 sequences fit if AdamW's state is there
# before them, 9 if it is made within their first step, as a run does.
LATE_STATE = [*TINY[:-4], "--seq-len", "64", "--strategy", "LR", "--allocator", "native"]
LATE_STATE += ["--gpu-memory", "25MiB", "--steps", "2"]


@pytest.mark.slow
def test_a_batch_is_tried_from_where_a_run_begins(capsys):
    result = finetune_json(capsys, *LATE_STATE, "--find-batch")
    batch = result["largest_batch"]
    tries = [(each["batch"], each["fits"]) for each in result["tries"]]
    assert len(dict(tries)) == len(tries)  # none was tried twice: the run took what was found
    assert dict(tries)[batch + 1] is False
    larger = [*LATE_STATE, "--memory", "resident", "--batch", batch + 1]
    assert "does not fit" in refused(capsys, 4, *larger)


@pytest.mark.slow
def test_where_a_run_does_not_take_what_was_found_a_smaller_one_is_looked_for(capsys, monkeypatch):
    monkeypatch.setattr(Engine, "begin_anew", Engine.recover)
    result = finetune_json(capsys, *LATE_STATE, "--find-batch")
    batch = result["largest_batch"]
    tries = [(each["batch"], each["fits"]) for each in result["tries"]]
    assert (batch + 1, True) in tries  # in the search
    assert (batch + 1, False) in tries  # and not in the run
    assert result["batch"] == batch
    assert len(result["loss"]) == 2


def test_a_search_on_a_device_without_end_is_refused(capsys):
    assert "--gpu-memory" in refused(capsys, 2, *TINY, "--find-batch")


# ---- Checkpoints ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["N"], ["LR"], ["RO", "--gpu-memory", "1MiB", "--batch", "1", "--seq-len", "8"]]
)
def test_a_resumed_run_has_the_curve_of_one_that_was_not_interrupted(more, capsys):
    work = [*TINY, "--lr", LR, "--lengths", "varied", "--strategy", *more]
    saving = [*work, "--checkpoint", "here", "--save-every", "2", "--resume"]
    finetune_json(capsys, *saving, "--steps", "3")
    resumed = finetune_json(capsys, *saving, "--steps", "6")
    whole = finetune_json(capsys, *work, "--steps", "6")
    assert resumed["loss"] == whole["loss"]
    assert (resumed["resumed_at"], whole["resumed_at"]) == (3, 0)
    assert resumed["step_shapes"] == whole["step_shapes"]
    nothing_left = finetune_json(capsys, *saving, "--steps", "6")
    assert nothing_left["loss"] == whole["loss"]
    assert nothing_left["tokens_per_second"] is None


def test_a_checkpoint_is_a_model_that_others_can_load(capsys, tmp_path):
    work = tuned(tmp_path, "--steps", "2", "--checkpoint", "out")
    finetune_json(capsys, *work)
    folder = tmp_path / "out" / "step-00000002"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.n_layer == 5
    assert transformers.AutoTokenizer.from_pretrained(folder)("x + 1")["input_ids"]
    again = finetune_json(capsys, *tuned(tmp_path, "--steps", "1", "--model", folder))
    assert again["model"] == "step-00000002"


def test_only_the_newest_two_are_kept_and_half_written_ones_are_not_read(capsys, tmp_path):
    work = [*TINY, "--checkpoint", "here", "--save-every", "1", "--resume"]
    finetune_json(capsys, *work, "--steps", "3")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        *("step-00000002", "step-00000003")
    ]
    half = tmp_path / "here" / ".partial-step-00000009"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    empty = tmp_path / "here" / "step-00000007"
    empty.mkdir()
    error = refused(capsys, 1, *work, "--steps", "4")
    assert "step-00000007 is no whole checkpoint" in error
    assert "goes on from step-00000003" in error
    empty.rmdir()
    result = finetune_json(capsys, *work, "--steps", "4")
    assert result["resumed_at"] == 3
    assert not half.exists()


def test_a_checkpoint_of_another_run_is_refused(capsys):
    work = [*TINY, "--checkpoint", "here"]
    finetune_json(capsys, *work, "--steps", "1")
    assert "--resume" in refused(capsys, 1, *work, "--steps", "2")
    error = refused(capsys, 1, *work, "--steps", "2", "--resume", "--seed", "1")
    assert "made with --seed 0, this run has 1" in error


def test_unknown_names_and_missing_engines(capsys, monkeypatch):
    assert "try: opt-1.3b" in refused(capsys, 2, "--model", "opt1.3b")
    real = importlib.util.find_spec

    def find(name, *more):
        return None if name == "deepspeed" else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    error = refused(capsys, 3, *TINY, "--zero", "3")
    assert "penstock[deepspeed]" in error


def test_labels_that_are_filled_up_do_not_count():
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORED
