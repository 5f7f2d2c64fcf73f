# SPDX-License-Identifier: Apache-2.0
"""``penstock gpt`` from the outside: flags in, text and JSON out, exit codes, nothing left."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from verbs import called, result_of

from penstock import attachments, paging
from penstock.models.checkpoint import shipped_checkpoint
from penstock.models.gpt import GPT
from penstock.models.tokenizer import open_tokenizer
from penstock.runner import steps
from penstock.runner.show import EMULATED

pytestmark = pytest.mark.usefixtures("small_emulated_gpu")

FROZEN = {
    "model": str,
    "device": str,
    "memory": str,
    "gpu_memory_bytes": int,
    "weight_bytes": int,
    "step_ms": list,
    "tokens_per_second": float,
    "bytes_in": list,
    "bytes_out": list,
    "peak_device_bytes": int,
    "hit_ratio": float,
    "link_gb_per_s": float,
    "ideal_ms": type(None),  # the emulated GPU has none
    "ratio_to_ideal": type(None),
    "output_sha256": str,
}
SMALL = ["--device", "emulated", "--model", "tiny", "--seq-len", "8", "--gpu-memory", "400KiB"]
QUICK = [*SMALL, "--steps", "2", "--warmups", "1"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    gc.collect()  # what the tests before have left to it
    before = open_files()
    yield
    gc.collect()  # memory goes with the last tensor in it, which an error's frames may hold
    assert attachments() == []
    assert open_files() == before


def open_files():
    """What this process holds open of memory and files; the emulated GPU lives in such."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    return sorted(name for name in found if "memfd" in name or "penstock" in name)


def gpt(capsys, *arguments):
    """Run the verb in this process; its exit code, stdout and stderr."""
    return called(capsys, "gpt", *arguments)


def gpt_json(capsys, *arguments):
    return result_of(capsys, "gpt", *arguments)


def refused(capsys, code, *arguments):
    """Run what must be refused; its error and its remedy."""
    found, out, err = gpt(capsys, *arguments)
    others = (": 100%", "%, ", "warning: ")
    lines = [line for line in err.splitlines() if not any(each in line for each in others)]
    assert (found, out) == (code, ""), err
    assert lines[0].startswith("error: "), err
    return lines[0], lines[1] if len(lines) > 1 else ""


# ---- What comes out ---------------------------------------------------------------------------


def test_json_has_the_promised_keys_first_and_in_order(capsys):
    result = gpt_json(capsys, *QUICK)
    assert list(result)[: len(FROZEN)] == list(FROZEN)
    for key, kind in FROZEN.items():
        assert isinstance(result[key], kind), key
    assert result["model"] == "tiny"
    assert (result["device"], result["memory"]) == ("emulated", "vmm")
    assert result["gpu_memory_bytes"] == 400 << 10
    assert len(result["step_ms"]) == len(result["bytes_in"]) == len(result["bytes_out"]) == 2
    assert 0 < result["peak_device_bytes"] <= 400 << 10
    assert 0 < result["hit_ratio"] < 1
    assert result["tokens_per_second"] == pytest.approx(16 / sum(result["step_ms"]) * 1e3)
    assert result["link_gb_per_s"] == result["counters"]["link_gb_per_s"] > 0
    assert result["check"] is None
    assert (result["dtype"], result["batch"], result["seq_len"]) == ("float32", 1, 8)
    assert (result["steps"], result["warmups"], result["seed"]) == (2, 1, 0)
    assert result["torch"] == torch.__version__
    assert len(bytes.fromhex(result["output_sha256"])) == hashlib.sha256().digest_size


def test_ten_steps_after_two_warm_ups_unless_told_otherwise(capsys):
    result = gpt_json(capsys, *SMALL)
    assert (len(result["step_ms"]), result["warmups"]) == (10, 2)


def test_text_for_people(capsys):
    code, out, err = gpt(capsys, *QUICK, "--check")
    assert code == 0
    assert out.startswith("tiny, 1 x 8 tokens a step, float32, vmm on the emulated GPU\n")
    for name in ("weights ", "budget ", "step ", "tokens a second", "hit ratio", "peak "):
        assert f"\n{name}" in out
    assert "check            ok: 2 outputs equal the resident baseline's, bit for bit" in out
    assert out.endswith(f"{EMULATED}\n")
    assert "timed steps: 100%" in err


def test_json_in_a_file_beside_text_for_people(capsys, tmp_path):
    code, out, _ = gpt(capsys, *QUICK, "--json", tmp_path / "out.json")
    assert code == 0
    assert "hit ratio" in out
    assert json.loads((tmp_path / "out.json").read_text())["model"] == "tiny"


def test_verbose_logs_every_step(capsys):
    code, out, err = gpt(capsys, *QUICK, "-v", "--json")
    assert code == 0
    assert json.loads(out)
    assert "step=2 ms=" in err


@pytest.mark.parametrize("memory", ["resident", "vmm"])
def test_the_ancestors_flags(memory, capsys):
    flags = ["--enable-prefetch", "--enable-cudnn-benchmark", "--num-streams", "5"]
    before = torch.backends.cudnn.benchmark
    try:
        result = gpt_json(capsys, *QUICK, *flags, "--memory", memory, "--allow-oversubscription")
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = before
    assert result["memory"] == memory


# ---- Managed memory ---------------------------------------------------------------------------


MANAGED = [*QUICK, "--memory", "managed", "--gpu-memory", "500KiB"]


@pytest.mark.parametrize("streams", ["0", "2"])
def test_managed_memory_with_prefetches(streams, capsys):
    flags = ["--enable-prefetch", "--num-streams", streams, "--check"]
    result = gpt_json(capsys, *MANAGED, *flags)
    assert result["memory"] == "managed"
    assert result["check"]["equal"]
    assert list(result)[: len(FROZEN)] == list(FROZEN)
    assert result["bytes_counted"]
    assert min(result["bytes_in"]) > 0
    assert 0 < result["peak_device_bytes"] <= 500 << 10


def test_managed_memory_on_demand(capsys):
    result = gpt_json(capsys, *MANAGED, "--check")
    assert result["check"]["equal"]
    assert not result["bytes_counted"]
    assert result["bytes_in"] == result["bytes_out"] == [0, 0]
    assert result["peak_device_bytes"] is None
    code, out, _ = gpt(capsys, *MANAGED)
    assert code == 0
    assert "moved a step" not in out
    assert "on demand" in out


def test_managed_memory_refuses_to_oversubscribe(capsys):
    arguments = [*MANAGED, "--model", "gpt2_small", "--gpu-memory", "30MiB", "--enable-prefetch"]
    error, remedy = refused(capsys, 4, *arguments)
    assert "would oversubscribe the 32.0 MiB" in error
    assert "--allow-oversubscription" in remedy


# ---- The check --------------------------------------------------------------------------------


def after_each_load(monkeypatch, do):
    """Have it done with a name and its tensor, of those that are loaded into pages."""
    attach = paging.attach

    def attach_and_do(model, *, load, **more):
        def loaded(name, destination):
            load(name, destination)
            do(name, destination)

        return attach(model, load=loaded, **more)

    monkeypatch.setattr(paging, "attach", attach_and_do)


def test_a_check_that_does_not_hold_is_exit_1_with_the_numbers(capsys, monkeypatch):
    def one_weight_off(name, destination):
        if name == "lm_head.weight":
            destination[3, 5] += 0.5

    after_each_load(monkeypatch, one_weight_off)
    code, out, err = gpt(capsys, *QUICK, "--check", "--json")
    assert code == 1, err
    result = json.loads(out)
    assert result["check"]["equal"] is False
    assert result["check"]["max_abs_diff"] > 0
    assert "error: --check: 2 of 2 outputs differ from the resident baseline, by up to " in err


# ---- Checkpoints and text ---------------------------------------------------------------------


def save_checkpoint(folder, *, tied):
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(7)
    config = transformers.GPT2Config(
        n_layer=3,
        n_head=4,
        n_embd=64,
        vocab_size=300,
        n_positions=64,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder, safe_serialization=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(["some text to learn words from, and some more"] * 50, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, save_checkpoint(folder, tied=request.param)


ON_EMULATED = ["--device", "emulated", "--gpu-memory", "350KiB"]


def test_a_checkpoint_of_transformers(checkpoint, capsys):
    folder, model = checkpoint
    run = [*ON_EMULATED, "--weights", folder, "--seq-len", "16", "--steps", "2", "--check"]
    result = gpt_json(capsys, *run)
    assert result["check"]["equal"]
    assert result["model"] == folder.name
    assert result["weight_bytes"] == sum(p.nbytes for p in model.parameters())
    assert result["bytes_in"][0] > 0


def test_greedy_text_is_that_of_transformers(checkpoint, capsys):
    folder, model = checkpoint
    prompt = "some text to"
    words = ["--prompt", prompt, "--generate", "12", "--temperature", "0", "--check"]
    result = gpt_json(capsys, *ON_EMULATED, "--weights", folder, *words)
    tokenizer = open_tokenizer(folder)
    ids = torch.tensor([tokenizer.encode(prompt)])
    theirs = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
    )
    assert result["text"]["text"] == tokenizer.decode(theirs[0, ids.shape[1] :].tolist())
    assert result["check"]["equal"]
    assert result["check"]["outputs"] == len(result["step_ms"])
    assert result["seq_len"] is None


def test_earlier_tokens_are_not_computed_again(checkpoint, capsys, monkeypatch):
    forward, lengths = GPT.forward, []

    def counting(self, idx_BT, cache=None):
        lengths.append(idx_BT.shape[1])
        return forward(self, idx_BT, cache)

    monkeypatch.setattr(GPT, "forward", counting)
    words = ["--prompt", "some text to", "--generate", "4"]
    gpt_json(capsys, *ON_EMULATED, "--weights", checkpoint[0], *words)
    prompt = len(open_tokenizer(checkpoint[0]).encode("some text to"))
    assert lengths == [prompt, 1, 1, 1]


def test_text_comes_before_the_figures_and_with_timed_steps_too(checkpoint, capsys):
    folder, _ = checkpoint
    words = ["--prompt", "some text", "--generate", "5", "--steps", "2", "--seq-len", "8"]
    code, out, _ = gpt(capsys, *ON_EMULATED, "--weights", folder, *words, "--json", "result.json")
    result = json.loads(Path("result.json").read_text())
    assert code == 0
    assert out.startswith(f"some text{result['text']['text']}\n\n{folder.name}, 1 x 8 tokens")
    assert len(result["step_ms"]) == 2
    assert len(result["text"]["token_ms"]) == 5


def test_the_included_checkpoint_writes_under_a_budget_below_its_weights(capsys):
    words = ["--prompt", "The function returns", "--generate", "24", "--check"]
    result = gpt_json(capsys, "--device", "emulated", "--gpu-memory", "7MiB", *words)
    assert result["model"] == shipped_checkpoint().name
    assert result["gpu_memory_bytes"] < 0.75 * result["weight_bytes"]
    assert result["peak_device_bytes"] <= 7 << 20
    assert result["check"]["equal"]
    assert min(result["bytes_in"]) > 0
    assert len(result["text"]["text"].split()) > 5


def damage(folder, what):
    weights = folder / "model.safetensors"
    if what == "truncated":
        os.truncate(weights, weights.stat().st_size // 2)
    elif what == "missing":
        weights.unlink()
    else:
        config = json.loads((folder / "config.json").read_text())
        config.update({"n_layer": 4} if what == "mismatched" else {"model_type": "llama"})
        (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("what", ["truncated", "missing", "mismatched", "foreign"])
def test_a_bad_checkpoint_is_exit_1(what, tmp_path, capsys):
    folder = tmp_path / "broken"
    folder.mkdir()
    save_checkpoint(folder, tied=True)
    damage(folder, what)
    error, _ = refused(capsys, 1, *ON_EMULATED, "--weights", folder)
    assert str(folder) in error


def test_a_checkpoint_of_another_model_is_exit_1(checkpoint, capsys):
    error, remedy = refused(
        capsys, 1, *ON_EMULATED, "--weights", checkpoint[0], "--model", "gpt2_small"
    )
    assert "n_layers 3, gpt2_small has 12" in error
    assert "--weights without --model" in remedy


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seq-len", "65"], "--seq-len 65 is more than the 64 positions"),
        (["--prompt", "some text", "--generate", "80"], "room for 64 positions"),
    ],
)
def test_more_than_the_positions_is_exit_2(words, message, checkpoint, capsys):
    error, _ = refused(capsys, 2, *ON_EMULATED, "--weights", checkpoint[0], *words)
    assert message in error


# ---- What is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gpt5"], "unknown model 'gpt5'"),
        (["--dtype", "int4"], "unknown dtype 'int4'"),
        (["--memory", "uvm"], "--memory 'uvm' is unknown"),
        (["--fusion", "magic"], "--fusion 'magic' is unknown"),
        (["--fusion", "auto,ffn_layernorm"], "--fusion 'auto' stands alone"),
        (["--compile"], "--compile with --memory vmm"),
        (["--memory", "managed", "--compress", "bf16"], "--compress bf16 with --memory managed"),
        (["--compile", "--memory", "resident", "--fusion", "auto"], "--fusion auto, which is"),
        (["--gpu-memory", "8GiBi"], "unknown unit 'GiBi'"),
        (["--gpu-memory", "0"], "no memory at all"),
        (["--gpu-memory", "120%"], "more than all"),
        (["--device", "tpu"], "'tpu' is not a device"),
        (["--steps", "0"], "--steps 0 makes no sense"),
        (["--batch", "two"], "'two' is not a valid integer"),
        (["--safety", "none"], "'none' is unknown"),
        (["--seq-len", "2000"], "--seq-len 2000 is more than the 128 positions of tiny"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_usage_is_exit_2(arguments, message, capsys):
    error, _ = refused(capsys, 2, *QUICK, *arguments)
    assert message in error


def test_a_budget_below_the_largest_layer_is_exit_4_and_says_what_works(capsys):
    error, remedy = refused(capsys, 4, *QUICK, "--gpu-memory", "64KiB")
    assert "below the smallest that works, 128 KiB" in error
    assert "--gpu-memory 1MiB" in remedy


def test_a_budget_beyond_the_device_is_exit_4(capsys):
    error, _ = refused(capsys, 4, *QUICK, "--gpu-memory", "1GiB")
    assert "exceeds the 32.0 MiB that are free" in error


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "gpt3_175b", "--memory", "vmm"],
        ["--model", "gpt3_175b", "--memory", "resident"],
        ["--model", "gpt2_small", "--memory", "vmm", "--host-memory", "100MiB"],
        ["--model", "gpt2_small", "--memory", "resident", "--host-memory", "100MiB"],
    ],
)
def test_more_host_memory_than_there_is_is_exit_4(arguments, capsys):
    begin = time.monotonic()
    error, remedy = refused(capsys, 4, *QUICK, "--gpu-memory", "32MiB", *arguments)
    assert "host memory are needed" in error
    assert "smaller model" in remedy
    assert time.monotonic() - begin < 30  # refused before it is loaded


def test_no_such_gpu_is_exit_3(capsys):
    error, remedy = refused(capsys, 3, *QUICK, "--device", "cuda:99")
    assert "--device cuda:99, but torch sees" in error
    assert "penstock doctor" in remedy


def test_without_torch_it_is_exit_3(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from penstock.cli.main import main; sys.exit(main(['gpt', '--model', 'tiny']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert done.stderr == ("error: torch is not installed\n  try: pip install 'penstock[torch]'\n")


@pytest.mark.parametrize("place", ["missing/out.json", "."])
def test_an_impossible_place_for_json_is_refused_before_the_work(place, capsys, monkeypatch):
    monkeypatch.setattr("penstock.runner.session.run", None)
    error, _ = refused(capsys, 1, *QUICK, "--json", place)
    assert "cannot be written" in error


# ---- Interrupts -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["loading", "warming up", "a timed step", "writing"])
def test_an_interrupt_anywhere_is_exit_130_and_leaves_nothing(where, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    arguments = [*QUICK, "--json", "out.json"]
    if where == "loading":
        after_each_load(monkeypatch, interrupt)
    elif where == "warming up":
        monkeypatch.setattr("penstock.models.gpt.MLP.forward", interrupt)
    elif where == "a timed step":
        monkeypatch.setattr(steps.Timed, "__call__", interrupt)
    else:
        arguments += ["--weights", str(shipped_checkpoint()), "--prompt", "a"]
        arguments.remove("tiny")
        arguments.remove("--model")
        monkeypatch.setattr("penstock.cli.gpt.write_text", interrupt)
        arguments += ["--gpu-memory", "7MiB"]
    code, _, err = gpt(capsys, *arguments)
    assert code == 130
    assert err.splitlines()[-1] == "error: interrupted"
    assert os.listdir(".") == []
