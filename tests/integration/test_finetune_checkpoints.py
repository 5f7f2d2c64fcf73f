# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ``penstock finetune`` that something happened to, and disks that are full."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.cli.main import main
from penstock.files import write
from penstock.finetune import checkpoint
from penstock.models.checkpoint import shipped_checkpoint

pytestmark = pytest.mark.usefixtures("own_folder")

TINY = ["--model", "tiny", "--device", "emulated", "--batch", "2", "--seq-len", "8", "--lr", "1e-3"]
OWN = [*TINY[2:], "--steps", "1"]
NAMES = (
    *("config.json", "manifest.json", "model.safetensors"),
    *("optimizer.json", "optimizer.safetensors", "random-0.pt", "state.json"),
)


def refused(capsys, code, *arguments):
    """What an error of one line says, and its remedy."""
    capsys.readouterr()
    assert main(["finetune", *map(str, arguments)]) == code
    err = capsys.readouterr().err
    what, remedy = err[err.index("error: ") :].splitlines()
    assert "bug of Penstock" not in err
    return what.removeprefix("error: "), remedy.removeprefix("  try: ")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("made") / "ck"
    work = [*TINY, "--steps", "2", "--checkpoint", str(folder), "--save-every", "1"]
    assert main(["finetune", *work]) == 0
    assert sorted(os.listdir(folder)) == ["step-00000001", "step-00000002"]
    assert sorted(os.listdir(folder / "step-00000002")) == sorted(NAMES)
    return folder


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def another(path):
    path.write_bytes((path.parents[1] / "step-00000001" / path.name).read_bytes())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harm", [os.remove, truncate, flip, lambda path: path.write_bytes(b"")])
def test_what_happened_to_a_checkpoint_is_told_by_name(harm, name, made, capsys):
    shutil.copytree(made, "ck")
    harm(Path("ck/step-00000002") / name)
    before = {path: path.read_bytes() for path in Path("ck").rglob("*") if path.is_file()}
    what, remedy = refused(capsys, 1, *TINY, "--steps", 3, "--checkpoint", "ck", "--resume")
    assert name in what or name == "manifest.json"
    assert "ck/step-00000002" in what
    assert remedy == "rm -r ck/step-00000002; --resume then goes on from step-00000001"
    assert before == {path: path.read_bytes() for path in Path("ck").rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_files_of_another_checkpoint_are_told_by_name(name, made, capsys):
    shutil.copytree(made, "ck")
    another(Path("ck/step-00000002") / name)
    what, _ = refused(capsys, 1, *TINY, "--steps", 3, "--checkpoint", "ck", "--resume")
    assert f"{name} was changed" in what or f"{name} has" in what
    shutil.copy("ck/step-00000001/model.safetensors", "ck/step-00000002/model-2.safetensors")
    shutil.copy(made / "step-00000002" / name, Path("ck/step-00000002") / name)
    what, _ = refused(capsys, 1, *TINY, "--steps", 3, "--checkpoint", "ck", "--resume")
    assert what.endswith("model-2.safetensors is none of its files")


def test_without_the_damaged_one_it_goes_on_from_the_one_before(made, capsys):
    shutil.copytree(made, "ck")
    os.remove("ck/step-00000002/model.safetensors")
    work = [*TINY, "--steps", "3", "--resume", "--checkpoint"]
    refused(capsys, 1, *work, "ck")
    shutil.rmtree("ck/step-00000002")
    assert main(["finetune", *work, "ck", "--json", "before.json"]) == 0
    shutil.copytree(made, "whole")
    assert main(["finetune", *work, "whole", "--json", "whole.json"]) == 0
    before, whole = (json.loads(Path(f"{name}.json").read_text()) for name in ("before", "whole"))
    assert (before["resumed_at"], whole["resumed_at"]) == (1, 2)
    assert before["loss"] == whole["loss"]


def test_of_two_damaged_ones_none_is_advised(made, capsys):
    shutil.copytree(made, "ck")
    for step in (1, 2):
        os.remove(f"ck/step-0000000{step}/model.safetensors")
    _, remedy = refused(capsys, 1, *TINY, "--steps", 3, "--checkpoint", "ck", "--resume")
    assert "another --checkpoint" in remedy


def test_a_rate_that_was_not_given_is_not_advised(capsys):
    work = [*TINY[:-2], "--checkpoint", "ck"]
    assert main(["finetune", *work, "--steps", "1"]) == 0
    what, remedy = refused(capsys, 1, *work, "--steps", "2", "--resume", "--lr", "0.5")
    assert what.endswith("was made without --lr, this run has 0.5")
    assert remedy.startswith("the same without --lr")


# ---- Full disks -------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [100, 3_000, 100_000, 600_000])
def test_a_disk_that_is_full_is_one_error_and_leaves_what_was_there(most, capsys, tmp_path):
    """A limit on the size of files stands in for the disk."""
    work = [*TINY, "--checkpoint", "ck"]
    assert main(["finetune", *work, "--steps", "1"]) == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        what, remedy = refused(capsys, 1, *work, "--steps", 2, "--resume")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert what.startswith("--checkpoint: step 2 cannot be written to ck: ")
    assert "File too large" in what
    limit = "a higher limit of a file's size, ulimit -f"
    assert remedy == f"{limit}; --resume then goes on from step-00000001"
    assert os.listdir("ck") == ["step-00000001"]
    assert main(["finetune", *work, "--steps", "2", "--resume"]) == 0


def test_two_runs_in_one_folder_are_told_so(capsys, monkeypatch, tmp_path):
    """The other one is first to give the step its name."""
    publish = checkpoint.publish

    def late(partial, place):
        shutil.copytree(partial, place)
        publish(partial, place)

    monkeypatch.setattr(checkpoint, "publish", late)
    what, remedy = refused(capsys, 1, *TINY, "--steps", "1", "--checkpoint", tmp_path / "ck")
    assert "step 1 cannot be written" in what
    assert remedy == "a folder that no other run writes to"


def test_another_run_in_the_same_folder_is_refused(made, capsys, monkeypatch):
    shutil.copytree(made, "ck")
    monkeypatch.setattr(checkpoint, "_PATIENCE_S", 0.2)
    work = [*TINY, "--steps", "3", "--checkpoint", "ck", "--resume"]
    held = os.open("ck", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    what, remedy = refused(capsys, 1, *work)
    assert what == "--checkpoint: ck: another run saves its checkpoints there"
    assert "another folder" in remedy
    assert sorted(os.listdir("ck")) == ["step-00000001", "step-00000002"]
    os.close(held)
    assert main(["finetune", *work]) == 0


def test_whatever_call_fails_the_checkpoint_before_stays(made, capsys, monkeypatch):
    """The calls of the writer itself: fsync, rename, what removes the oldest."""
    shutil.copytree(made, "ck")
    work = [*TINY, "--steps", "3", "--checkpoint", "ck", "--resume"]
    for name in ("fsync", "rename", "replace", "link"):
        calls = []

        def fail(*arguments, _name=name, _calls=calls, **options):
            _calls.append(arguments)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(write.os, name, fail)
            refused(capsys, 1, *work)
        assert calls, name
        assert sorted(os.listdir("ck")) == ["step-00000001", "step-00000002"], name
    assert main(["finetune", *work]) == 0


def test_what_a_killed_run_left_is_removed_by_the_next_one(made):
    shutil.copytree(made, "ck")
    shutil.copytree("ck/step-00000001", "ck/.removed-step-00000000")
    shutil.copytree("ck/step-00000001", "ck/.partial-step-00000009")
    work = [*TINY, "--steps", "3", "--checkpoint", "ck", "--resume"]
    assert main(["finetune", *work]) == 0
    assert sorted(os.listdir("ck")) == ["step-00000002", "step-00000003"]


# ---- Folders of weights -----------------------------------------------------------------------


@pytest.fixture
def folder():
    """A copy of a checkpoint, to be spoilt."""
    shutil.copytree(shipped_checkpoint(), "m")
    return Path("m")


def spoil(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {f"foo.{name}": value for name, value in tensors.items()},
        lambda tensors: {name: each for name, each in tensors.items() if "h.1.mlp" not in name},
        lambda tensors: {name: each for name, each in tensors.items() if "ln_f.bias" not in name},
        lambda tensors: {
            name: each[..., :-1].contiguous() if "ln_f.bias" in name else each
            for name, each in tensors.items()
        },
        lambda tensors: {name: torch.zeros(3) for name in tensors},
    ],
    ids=["renamed", "missing", "one missing", "one of another shape", "others"],
)
def test_weights_that_leave_the_model_as_it_was_made_are_refused(change, folder, capsys):
    spoil(folder, change)
    what, _ = refused(capsys, 1, "--model", "m", *OWN)
    assert what.startswith(("m does not fit", "m cannot be loaded", "m: "))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "opt"},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {"n_layer": 9},
        {"n_layer": 3},
        {"n_layer": 300_000_000},
        {"n_layer": -1},
        {"n_embd": 48},
        {"n_layer": "many"},
        {"model_type": "bert"},
        {"vocab_size": 7},
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_refused(changes, folder, capsys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    refused(capsys, 1, "--model", "m", *OWN)


def test_no_code_of_a_checkpoint_runs(folder, capsys, monkeypatch):
    Path("evil.py").write_text("raise SystemExit('it ran')")
    ran = "open('RAN', 'w').write('')\nfrom transformers import PretrainedConfig\n"
    (folder / "evil.py").write_text(
        f"{ran}class EvilConfig(PretrainedConfig):\n    model_type = 'evil'\n"
    )
    where = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": where}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    refused(capsys, 1, "--model", "m", *OWN)
    assert not Path("RAN").exists()


def test_an_unknown_manifest_is_no_checkpoint(made, capsys):
    shutil.copytree(made, "ck")
    for text in ("[]", "{}", '{"format": 9, "files": {}}', '{"format": 1, "files": [1]}', "\x00"):
        Path("ck/step-00000002/manifest.json").write_text(text)
        what, _ = refused(capsys, 1, *TINY, "--steps", 3, "--checkpoint", "ck", "--resume")
        assert "manifest.json" in what


def test_a_state_of_another_format_is_refused(made, monkeypatch, capsys):
    shutil.copytree(made, "ck")
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    what, _ = refused(capsys, 1, *TINY, "--steps", 3, "--checkpoint", "ck", "--resume")
    assert "state.json" in what
