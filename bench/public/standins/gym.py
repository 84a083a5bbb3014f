"""Stand-in for the old gym: environments of gymnasium with the old answers, without a window."""

from __future__ import annotations

from typing import Any

import gymnasium


class _OldEnvironment:
    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def reset(self, **given: Any) -> Any:
        return self._environment.reset(**given)[0]

    def step(self, action: Any) -> Any:
        observation, reward, ended, cut, info = self._environment.step(action)
        return observation, reward, ended or cut, info

    def render(self, *_: Any, **__: Any) -> None:
        """There is no window."""

    def seed(self, seed: int) -> None:
        self._environment.reset(seed=seed)

    @property
    def unwrapped(self) -> _OldEnvironment:
        return _OldEnvironment(self._environment.unwrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


def make(name: str, **given: Any) -> _OldEnvironment:
    return _OldEnvironment(gymnasium.make(name.replace("-v0", "-v1"), **given))
