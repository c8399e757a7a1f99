"""Algorithms of other packages become choices of `algo=`, wherever Hydra composes a configuration.

A package names itself, or a package inside it, under the entry point group `tokenrouter.algorithms`; its folder `algo/`
is searched for yaml files beside conf/algo. See docs/adding-a-router.md.
"""
from __future__ import annotations

from importlib.metadata import entry_points

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

GROUP = "tokenrouter.algorithms"


class AlgorithmsOfOtherPackages(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # conf/ itself comes first: nobody replaces a choice that is there.
        for package in sorted({entry_point.value for entry_point in entry_points(group=GROUP)}):
            search_path.append(provider=GROUP, path=f"pkg://{package}")
