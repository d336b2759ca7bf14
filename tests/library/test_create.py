"""Models created from others: recipes in flags, TOML and Modelfiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.library.test_pull import check_complete
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library.catalog import Library
from tidemill.library.create import create
from tidemill.library.definition.modelfile import parse_modelfile, read_modelfile
from tidemill.library.definition.parameters import read_parameters
from tidemill.library.definition.recipe import Recipe
from tidemill.library.definition.toml_file import read_toml
from tidemill.library.locate import locate
from tidemill.library.manifest import Definition
from tidemill.loading.locate import bundled_models


def recipe_of(text: str, tmp_path: Path) -> Recipe:
    return parse_modelfile(text, tmp_path / "Modelfile")


def test_a_modelfile(tmp_path: Path) -> None:
    (tmp_path / "base.gguf").touch()
    (tmp_path / "lora").mkdir()
    file = tmp_path / "Modelfile"
    file.write_text(
        "\n# Mario\nFROM ./base.gguf\nparameter temperature 0.7\nPARAMETER stop \"<|user|>\"\n"
        "PARAMETER stop two words\nPARAMETER num_ctx 4096\nPARAMETER repeat_penalty 1.1\n"
        "PARAMETER num_predict -1\nPARAMETER mirostat 0\nPARAMETER num_gpu 1\n"
        'SYSTEM """\nYou are Mario.\n\n# No comment.\n"""\nADAPTER lora\n'
        'MESSAGE user Is it "you"?\nMESSAGE assistant """It is\nme."""\nLICENSE "MIT"\n'
        "REQUIRES 0.6\n"
    )  # fmt: skip
    recipe = read_modelfile(file)
    assert recipe.base == str(tmp_path / "base.gguf") and recipe.licence == "MIT"
    assert recipe.definition == Definition(
        system="\nYou are Mario.\n\n# No comment.\n",
        messages=(
            {"role": "user", "content": 'Is it "you"?'},
            {"role": "assistant", "content": "It is\nme."},
        ),
        sampling={
            "temperature": 0.7,
            "stop": ("<|user|>", "two words"),
            "repetition_penalty": 1.1,
        },
        max_model_len=4096,
        adapters=(str(tmp_path / "lora"),),
    )
    assert len(recipe.notes) == 2 and "num_gpu has no effect" in recipe.notes[1]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("FROM a\nTEMPLATE {{ .Prompt }}", ErrorKind.CONFIG, "line 2: TEMPLATE is in Go's"),
        ('TEMPLATE """{{ if .System }}x{{ end }}"""', ErrorKind.CONFIG, "--chat-template"),
        ("RENDERER x", ErrorKind.CONFIG, "remove the line"),
        ("FROM a\nFROM b", ErrorKind.CONFIG, "line 2: a second FROM"),
        ("FORM a", ErrorKind.CONFIG, "line 1: 'FORM' is no instruction"),
        ("FROM", ErrorKind.CONFIG, "FROM says nothing"),
        ('SYSTEM """never', ErrorKind.CONFIG, "line 1: the text after"),
        ("MESSAGE robot hi", ErrorKind.CONFIG, "not of 'robot'"),
        ("ADAPTER ./absent", ErrorKind.CONFIG, "does not exist"),
        ("FROM a\nPARAMETER temprature 1", ErrorKind.CONFIG, "line 2: no parameter is called"),
        ("PARAMETER temperature warm", ErrorKind.CONFIG, "temperature is a number, not 'warm'"),
        ("PARAMETER temperature 101", ErrorKind.CONFIG, "line 1: temperature"),
        ("PARAMETER mirostat 2", ErrorKind.CONFIG, "mirostat sampling does not exist"),
        ("PARAMETER repeat_last_n -2", ErrorKind.CONFIG, "line 1: repeat_last_n"),
        ("PARAMETER top_k 1.5", ErrorKind.CONFIG, "a whole number"),
    ],
)
def test_what_a_modelfile_may_not_say(
    text: str, kind: ErrorKind, said: str, tmp_path: Path
) -> None:
    with pytest.raises(TidemillError) as caught:
        recipe_of(text, tmp_path)
    assert caught.value.kind == kind and said in caught.value.message


def test_a_template_in_jinja(tmp_path: Path) -> None:
    text = 'FROM a\nTEMPLATE """{% for m in messages %}{{ m.content }}{% endfor %}"""'
    template = recipe_of(text, tmp_path).definition.chat_template
    assert template is not None and template.startswith("{% for")


def test_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    file.write_text(
        'from = "org/repo:Q4_K_M"\nsystem = "Be brief."\nchat_template_file = "t.jinja"\n'
        'quantize = "q8_0"\nlicense = "MIT"\n[parameters]\ntop_k = 40\nstop = ["a", "b"]\n'
        '[[messages]]\nrole = "user"\ncontent = "Hi"\n'
    )
    recipe = read_toml(file)
    assert recipe == Recipe(
        "org/repo:Q4_K_M",
        Definition(
            system="Be brief.",
            messages=({"role": "user", "content": "Hi"},),
            sampling={"top_k": 40, "stop": ("a", "b")},
            chat_template="{{ messages }}",
            quantize="q8_0",
        ),
        "MIT",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from = 1", "Expected `str | null`, got `int` - at `$.from`"),
        ("sytem = 'x'", "no key is called 'sytem'; did you mean system?"),
        ("from =", "m.toml: Invalid value (at"),
        ("quantize = 'q3'", "quantize is one of"),
        ("messages = [{role = 'x', content = ''}]", "not of 'x'"),
        ("chat_template = ''\nchat_template_file = ''", "exclude each other"),
        ("[parameters]\ntop_p = 7", "top_p"),
        ("[parameters]\ntop_p = true", "top_p is a number, not True"),
        ("adapters = ['x']", "does not exist"),
    ],
)
def test_what_a_toml_file_may_not_say(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text(text)
    with pytest.raises(TidemillError) as caught:
        read_toml(file)
    assert caught.value.kind == ErrorKind.CONFIG and said in caught.value.message


def test_every_sampler_may_be_preset() -> None:
    given = [("typical_p", "0.9"), ("repeat_last_n", "64"), ("dry_multiplier", "0.8")]
    found, notes = read_parameters(given, "x")
    assert found.sampling == {"typical_p": 0.9, "repeat_last_n": 64, "dry_multiplier": 0.8}
    assert notes == ()


def test_no_limit_is_no_value() -> None:
    assert read_parameters([("num_predict", "-1"), ("tfs_z", "1.0")], "x")[0].empty


def test_from_a_bundled_model_and_on(library: Library) -> None:
    brook = bundled_models()["brook"]
    first = Recipe("brook", Definition(system="A", sampling={"top_k": 5, "seed": 1}))
    one = create("one", first, library)
    assert one.manifest.source == one.manifest.base == "brook"
    # Another environment may have another brook, or this one be removed.
    files = {path.name: path.resolve() for path in one.path.iterdir()}
    assert all(path.is_relative_to(library.blobs.folder.resolve()) for path in files.values())
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert files[name].read_bytes() == (brook / name).read_bytes()
    two = create("two@1", Recipe("one", Definition(sampling={"seed": 2})), library)
    assert two.definition == Definition(system="A", sampling={"top_k": 5, "seed": 2})
    assert locate("two", library=library).definition == two.definition
    check_complete(library)
    again = create("one", Recipe("one", Definition(system="B")), library)
    assert again.definition == Definition(system="B", sampling={"top_k": 5, "seed": 1})
    assert library.resolve("two@1").definition.system == "A"


@pytest.mark.parametrize(
    ("name", "base", "said"),
    [
        ("brook", "brook", "bundled model"),
        ("a b", "brook", "cannot be a model's name"),
        ("x", None, "name it with --from"),
        ("x", "./absent", "no such file"),
    ],
)
def test_what_cannot_be_created(name: str, base: str | None, said: str, library: Library) -> None:
    with pytest.raises(TidemillError, match=said):
        create(name, Recipe(base), library)
    assert library.names() == ()
