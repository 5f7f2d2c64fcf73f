# SPDX-License-Identifier: Apache-2.0
"""What a folder of safetensors holds, and what ``penstock estimate FOLDER`` makes of it."""

from __future__ import annotations

import json
import os

import pytest

from penstock.cli.main import main
from penstock.errors import FailedError
from penstock.models.folder import read_folder
from penstock.units import MIB

DENSE = {"embed.weight": (512, 256), "layers.0.q.weight": (256, 256), "layers.0.q.bias": (256,)}
EXPERTS = {f"layers.0.mlp.experts.{n}.up.weight": (64, 256) for n in range(8)}


def write(file, shapes, dtype="BF16"):
    """A file of tensors of two bytes an element, all zeros."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        begin = end
        for size in (2,):
            for extent in shape:
                size *= extent
            end += size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def test_tensors_and_modules(tmp_path):
    write(tmp_path / "model.safetensors", DENSE)
    found = read_folder(tmp_path)
    assert found.parameters == 512 * 256 + 256 * 256 + 256
    assert found.weight_bytes == 2 * found.parameters == found.touched_bytes
    assert found.largest_module_bytes == 2 * 512 * 256


def test_experts_count_by_how_many_are_chosen(tmp_path):
    write(tmp_path / "model.safetensors", {**DENSE, **EXPERTS})
    experts = 2 * 8 * 64 * 256
    assert read_folder(tmp_path).touched_bytes == read_folder(tmp_path).weight_bytes
    (tmp_path / "config.json").write_text('{"num_experts_per_tok": 2}')
    found = read_folder(tmp_path)
    assert found.expert_bytes == experts
    assert found.weight_bytes - found.touched_bytes == experts * 6 // 8


def test_experts_that_are_there_need_not_cross(tmp_path, capsys):
    experts = {f"mlp.experts.{n}.up.weight": (1024, 1024) for n in range(64)}
    dense = {f"layers.{n}.weight": (1024, 1024) for n in range(8)}
    write(tmp_path / "model.safetensors", {**dense, **experts})
    (tmp_path / "config.json").write_text('{"num_experts_per_tok": 8}')

    def moved(mib):
        assert main(["estimate", str(tmp_path), "--gpu-memory", f"{mib}MiB", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["bytes_in"]

    assert moved(40 + 16) == 16 * MIB  # all that are chosen
    assert moved(40 + 16 + 64) == 8 * MIB  # half of them are there
    assert moved(40 + 16 + 128) == 0


def test_shards_variants_and_pipelines(tmp_path):
    for number, part in enumerate((DENSE, EXPERTS)):
        write(tmp_path / "unet" / f"model-{number}.safetensors", part)
    write(tmp_path / "unet" / "left-over.safetensors", DENSE)
    names = {"a": "model-0.safetensors", "b": "model-1.safetensors"}
    index = tmp_path / "unet" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    write(tmp_path / "vae" / "model.safetensors", DENSE)
    write(tmp_path / "vae" / "model.fp16.safetensors", DENSE)
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(FailedError, match=r"no \.safetensors file"):
        read_folder(tmp_path)
    components = {"unet": ["diffusers", "A"], "vae": ["diffusers", "B"], "checker": [None, None]}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "P", **components}))
    for other in ("whole-v1.5.safetensors", "vae_1_0/model.safetensors", "checker/a.safetensors"):
        write(tmp_path / other, DENSE)
    dense = 2 * (512 * 256 + 256 * 256 + 256)
    assert read_folder(tmp_path).weight_bytes == 2 * dense + 2 * 8 * 64 * 256


def test_the_same_weights_in_another_library_s_names_count_once(tmp_path):
    for name in ("consolidated", "model"):
        write(tmp_path / f"{name}.safetensors", DENSE)
    assert read_folder(tmp_path).weight_bytes == 2 * (512 * 256 + 256 * 256 + 256)


def test_an_adapter_is_not_a_model(tmp_path):
    write(tmp_path / "adapter_model.safetensors", DENSE)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/llama"}')
    with pytest.raises(
        FailedError, match="adapter alone; try: its base model's folder, some/llama"
    ):
        read_folder(tmp_path)
    write(tmp_path / "model.safetensors", DENSE)
    assert read_folder(tmp_path).weight_bytes == 2 * (512 * 256 + 256 * 256 + 256)


def test_a_folder_does_not_hide_a_known_shape(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "gpt2-xl" / "model.safetensors", DENSE)
    assert main(["estimate", "gpt2-xl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "gpt2_xl"


def header(text):
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (b"\xff" * 20, "a header of"),
        (header(b"{]"), "Expecting"),
        (header(b"[" * 100_000), "model.safetensors"),
        (header(b"[1]"), "not a header of tensors"),
        (header(b'{"a": 3}'), "not a header of tensors"),
        (header(b'{"a": {"shape": [4], "data_offsets": [0, 8]}}'), "a lies outside the file"),
        (header(b'{"a": {"shape": [-1], "data_offsets": [0, 0]}}'), "a lies outside the file"),
        (header(b'{"a": {"shape": ["x"], "data_offsets": [0, 0]}}'), "not a header of tensors"),
        (header(b'{"a": {"shape": "44", "data_offsets": [0, 0]}}'), "not a header of tensors"),
        (header(b'{"a": {"shape": [1e999], "data_offsets": [0, 0]}}'), "no whole number"),
        (header(b'{"a": {"shape": [4], "data_offsets": [0, 1e999]}}'), "no whole number"),
        (header(b'{"a": {"shape": [9, 9], "data_offsets": [0, 8]}}') + bytes(8), "has 8 bytes"),
        (
            header(
                b'{"a":{"shape":[8],"data_offsets":[0,8]},"b":{"shape":[8],"data_offsets":[0,8]}}'
            )
            + bytes(8),
            "overlap",
        ),
    ],
)
def test_damaged_files(tmp_path, content, says):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FailedError, match=says):
        read_folder(tmp_path)


@pytest.mark.parametrize("number", ["9" * 5000, "\N{SUPERSCRIPT TWO}", "7"])
def test_numbers_of_experts_may_be_any(number, tmp_path):
    write(tmp_path / "model.safetensors", {f"experts.{number}.up.weight": (2, 2)})
    (tmp_path / "config.json").write_text(f'{{"num_experts_per_tok": {"9" * 400}}}')
    assert read_folder(tmp_path).touched_bytes == 8


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FailedError, match="no such file"):
        read_folder(tmp_path)


def test_the_estimate(tmp_path, capsys):
    write(tmp_path / "model.safetensors", {f"layers.{n}.w": (1024, 1024) for n in range(64)})
    assert main(["estimate", str(tmp_path), "--gpu-memory", "104MiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weight_bytes"] == 128 * MIB
    assert found["bytes_in"] == 64 * MIB  # 40 of the budget are cuBLAS's
    assert found["batch"] is found["activation_bytes"] is found["dtype"] is None
    assert main(["estimate", str(tmp_path)]) == 0
    assert "one token" in capsys.readouterr().out
    assert main(["estimate", str(tmp_path), "--seq-len", "8"]) == 2
    assert "--seq-len cannot be given with" in capsys.readouterr().err
    assert main(["estimate", str(tmp_path), "--gpu-memory", "20MiB"]) == 4
    assert "--gpu-memory 44MiB" in capsys.readouterr().err


def test_a_file_or_a_folder_that_is_not_there(tmp_path, capsys):
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert main(["estimate", str(tmp_path / "model.safetensors")]) == 2
    assert f"model.safetensors is a file\n  try: penstock estimate {tmp_path}\n" in (
        capsys.readouterr().err
    )
    for name in (str(tmp_path / "nowhere"), ""):
        assert main(["estimate", name]) == 2
        assert "and no folder of that name" in capsys.readouterr().err
