"""What of this suite `make check` runs."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from conftest import KEPT, UNKNOWN, pytest_collection_modifyitems


@dataclass(frozen=True)
class Item:
    path: Path
    slow: bool = False

    def get_closest_marker(self, name: str) -> bool:
        return self.slow and name == "slow"


def test_the_quickest_files_that_fit_are_run_without_their_slow_tests():
    names = {"hours.py": 3, "quick.py": 2, "long.py": 1, "never-run.py": 1}
    items = [Item(Path(name)) for name, number in names.items() for _ in range(number)] + [Item(Path("quick.py"), True)]
    kept, left = {"hours.py": 50, "quick.py": 0.01, "long.py": 5}, []
    config = SimpleNamespace(
        option=SimpleNamespace(seconds=UNKNOWN + 5.1),
        cache=SimpleNamespace(get=lambda key, default: kept if key == KEPT else default),
        hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items)),
    )
    pytest_collection_modifyitems(config, items)
    assert [item.path.name for item in items] == ["quick.py", "quick.py", "never-run.py", "long.py"]
    assert set(left) == {Item(Path("hours.py")), Item(Path("quick.py"), True)}
