"""The house's rules, read off the source: one way of dependencies, privates that stay in their folder."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "src" / "sparsegroup", ROOT / "paper" / "src" / "sparsegroup_paper")
SOURCES = sorted(file for package in PACKAGES for file in package.rglob("*.py"))
OTHERS = sorted(
    file for room in ("tests", "paper/tests", "benchmarks", "examples") for file in (ROOT / room).rglob("*.py")
)

FLOORS = (
    ("errors", "names", "addresses", "importing", "signals", "tensors", "bags", "notebook"),
    ("rules", "penalties", "prox"),
    ("groups",),
    ("kernels",),
    ("optim",),
    ("artifact",),
    ("table", "sparsity"),
    ("checkpoint", "integrations"),
    ("models", "data", "settings", "objectives"),
    ("training", "reporting"),
    ("serving", "tuning"),
    ("publishing",),
    ("streaming", "server"),
    ("estimator",),
    ("cli",),
    ("sparsegroup_paper",),
)
"""From the ground up: a room imports those beside and below it."""
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
SMALL = 120
"""Lines. A module of fewer with a single importer is a part of that one, unless there is a reason."""
REASONS = {
    "settings/auto.py": "what a log decides, apart from what is declared",
    "kernels/cpu/backend.py": "a backend, as the others are",
    "kernels/cpu/numba_namespace.py": "the namespace that `bind` gives to rules",
    "table/lookup/compile.py": "an operator, which torch registers when this is imported",
    "table/files/state_dict.py": "what is saved and loaded of a table, apart from the module",
    "table/sharded/lookup.py": "the lookup over ranks, by the exchange and the routing that it is made of",
}
"""Why a small module with one importer is a file."""

APART = {"models": ("table", "optim"), "data": ("training", "table", "optim")}
"""What a room may not know, though it is below."""


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def room_of(file: Path) -> str:
    package = next(package for package in PACKAGES if package in file.parents)
    inside = file.relative_to(package).parts
    return package.name if package.name != "sparsegroup" else inside[0].removesuffix(".py")


def imports(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of what a file imports from the packages."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sparsegroup"):
            for alias in node.names:
                yield node.lineno, node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("sparsegroup"):
                    yield node.lineno, alias.name, ""


def assert_none(found: list[str]) -> None:
    assert not found, "\n".join(["", *found])


def test_class_names_are_unique_within_a_folder():
    places = defaultdict(list)
    for file in SOURCES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[file.parent, node.name].append(name_of(file))
    assert_none([f"{name}: {', '.join(files)}" for (_, name), files in places.items() if len(files) > 1])


def test_a_file_has_at_most_700_lines():
    lengths = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in [*SOURCES, *OTHERS]}
    assert_none([f"{name}: {lines} lines" for name, lines in lengths.items() if lines > 700])


def test_workflows_have_few_rights_and_actions_that_nobody_can_replace():
    found = []
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = file.read_text(encoding="utf-8")
        if not re.search(r"^permissions: \{contents: read\}$", text, re.MULTILINE):
            found.append(f"{file.name}: no `permissions: {{contents: read}}` for all jobs")
        used = re.findall(r"uses: (\S+)", text)
        found += [f"{file.name}: {one} by a tag" for one in used if not re.search(r"@[0-9a-f]{40}$", one)]
    assert_none(found)


def test_every_room_has_its_floor():
    rooms = {room_of(file) for file in SOURCES} - {"__init__", "__main__"}
    assert rooms <= FLOOR.keys(), sorted(rooms - FLOOR.keys())


def test_dependencies_point_one_way():
    found = []
    for file in SOURCES:
        mine = room_of(file)
        if mine in ("__init__", "__main__"):
            continue
        for line, module, _ in imports(file):
            package, *inside = module.split(".")
            target = package if package != "sparsegroup" else inside[0] if inside else None
            if target is not None and (FLOOR[target] > FLOOR[mine] or target in APART.get(mine, ())):
                found.append(f"{name_of(file)}:{line}: {mine} imports {module}")
    assert_none(found)


@cache
def modules() -> dict[str, Path]:
    """Name of each module and package → its file."""
    names = {}
    for file in SOURCES:
        package = next(package for package in PACKAGES if package in file.parents)
        parts = file.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


@cache
def imported_by() -> dict[str, set[str]]:
    """Each module → the modules that import it, in functions and for type checking too."""
    names = modules()
    importers: dict[str, set[str]] = {name: set() for name in names}
    for importer, file in names.items():
        for _, module, name in imports(file):
            importers[f"{module}.{name}" if f"{module}.{name}" in names else module].add(importer)
    return importers


def circles(importers: dict[str, set[str]]) -> list[set[str]]:
    """Modules that all lead to each other."""
    reached: dict[str, set[str]] = {}
    for start in importers:
        reached[start], ahead = set(), [start]
        while ahead:
            news = importers[ahead.pop()] - reached[start]
            reached[start] |= news
            ahead += news
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in reached}
    return [set(circle) for circle in found if circle]


def test_no_module_imports_itself_by_way_of_others():
    assert_none([f"a circle of {', '.join(sorted(circle))}" for circle in circles(imported_by())])


def test_a_small_module_with_one_importer_has_a_reason():
    """The front of a package counts as many: it stands for all who use what it gives out."""
    found, names = [], modules()
    for name, importers in imported_by().items():
        file = names[name]
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if file.stem in ("__init__", "__main__") or len(importers) != 1 or lines >= SMALL:
            continue
        (importer,) = importers
        if PACKAGES[0] not in file.parents or names[importer].stem == "__init__":
            continue
        if file.relative_to(PACKAGES[0]).as_posix() not in REASONS:
            found.append(f"{name_of(file)}: {lines} lines, imported by {importer} only")
    assert_none(found)


def test_a_folder_has_at_most_15_files():
    counts = Counter(file.parent.relative_to(PACKAGES[0]).as_posix() for file in PACKAGES[0].rglob("*.py"))
    assert_none([f"{folder}: {count} files" for folder, count in counts.items() if count > 15])


def test_every_package_has_its_folder_of_tests():
    packages = {folder.parent.name for folder in PACKAGES[0].glob("*/__init__.py")}
    assert_none(
        sorted(packages - {folder.name for folder in (ROOT / "tests").iterdir() if any(folder.glob("test_*.py"))})
    )


def folder_of(module: str) -> Path:
    """The folder in which a module or package is found."""
    inside = Path(*module.split("."))
    package = next(package for package in PACKAGES if package.name == inside.parts[0])
    path = package.parent / inside
    return path if path.is_dir() else path.parent


def test_privates_are_imported_within_their_folder_only():
    found = []
    for file in SOURCES:
        for line, module, name in imports(file):
            private = name.startswith("_") and not name.startswith("__")
            if private and folder_of(module) != file.parent:
                found.append(f"{name_of(file)}:{line}: imports {module}.{name}")
    assert_none(found)


def names_defined_in(file: Path) -> set[str]:
    """Functions, attributes of `self` and slots that a file defines."""
    names = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            names |= targets
            if "__slots__" in targets:
                names |= {text.value for text in ast.walk(node.value) if isinstance(text, ast.Constant)}
    return names


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("super", "type")
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_privates_are_read_within_their_folder_only():
    defined: dict[Path, set[str]] = defaultdict(set)
    for file in SOURCES:
        defined[file.parent] |= names_defined_in(file)
    everywhere = set().union(*defined.values())
    found = []
    for file in SOURCES:
        for node in ast.walk(tree(file)):
            private = isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr) and not _is_self(node.value)
            if private and node.attr in everywhere - defined[file.parent] and not _is_torchs(node):
                found.append(f"{name_of(file)}:{node.lineno}: {ast.unparse(node)}")
    assert_none(found)


def _is_torchs(node: ast.Attribute) -> bool:
    return node.attr in ("_values", "_indices", "_nnz", "_version", "_parameters", "_is_param")


def test_docstrings_say_what_a_thing_is():
    """Not "Likewise.", nor what it is "Of"."""
    found = []
    for file in SOURCES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                for line in (ast.get_docstring(node) or "").splitlines():
                    if re.match(r"(\s*[\w, ]+: )?(Of |Likewise|The rest\b|As the rest)", line):
                        found.append(f"{name_of(file)}: {getattr(node, 'name', 'module')}: {line.strip()}")
    assert_none(found)


MAKERS = re.compile(r"(empty|zeros|ones|full|arange|linspace|eye|tensor|scalar_tensor|rand\w*|(sparse_\w+|as)_?tensor)")
"""torch's functions that take device and dtype from its defaults, unless they are named."""


def test_the_core_names_device_and_dtype_of_every_tensor_that_it_makes():
    """A kernel that is given the memory of a tensor of another device or dtype than it was compiled for may crash."""
    found = []
    for file in SOURCES:
        if FLOOR.get(room_of(file), 0) > FLOOR["checkpoint"] or room_of(file).startswith("__"):
            continue
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and MAKERS.fullmatch(node.func.attr):
                given = {keyword.arg for keyword in node.keywords}
                missing = {"device", "dtype"} - given if "_" not in node.func.attr else {"device"} - given
                if ast.unparse(node.func.value) == "torch" and missing:
                    found.append(f"{name_of(file)}:{node.lineno}: {ast.unparse(node)} without {', '.join(missing)}")
    assert_none(found)


TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *SOURCES]
MOST = {
    r"\b(?:is|are|was|were|be) told\b": 1,  # reported, passed, notified
    r"\b(?:goes|go|going|went|gone) on\b(?! (?:the|a) )": 3,  # continues, resumes
    r"\bwhat (?:is|are|was) left\b|\bis left of\b": 3,  # the remaining …
    r"\b(?:that|which) (?:is|are) none\b": 3,  # is not a …
    r"\bthose (?:that|who|of|which)\b": 62,  # the noun
    r"\bso (?:many|much)\b": 3,  # n, the number of
    r"\bstands?\b(?! for)": 2,  # is, is written
    r"\banew\b": 3,  # again
    r"\bbeside\b": 3,  # with, next to, compared with
    r"\bof (?:its|your|their|one's|a run's) own\b": 26,  # separate, custom, your
    r"\bat once\b": 1,  # immediately
    r"\b(?:whoever|whatever|whichever)\b": 9,  # any …
    r"\bask(?:s|ed)? for\b": 11,  # target, requested
    r", too\b": 13,  # also
    r"\bnobody\b": 4,  # not set, no caller
    r"\blikewise\b|\bmeanwhile\b": 3,
    r"\bbut for\b": 1,  # except
    r"\bas (?:it is|they are|it does|they do)\b": 13,  # unchanged
    r"\b(?:lies|lie)\b": 7,  # is stored in
}
"""Pattern → the most occurrences in README, CONTRIBUTING, the guides and the source."""


def test_words_that_a_reader_must_translate_become_fewer():
    """The numbers may only fall: use the plain word, see the table in CONTRIBUTING.md."""
    text = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in TEXTS)
    counts = {pattern: len(re.findall(pattern, text, re.IGNORECASE)) for pattern in MOST}
    assert_none(
        [f"{pattern}: {counts[pattern]}, at most {most}" for pattern, most in MOST.items() if counts[pattern] > most]
    )
