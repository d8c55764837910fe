"""Substitute for SGLang's CUDA kernels on a CPU, where no build of `sgl-kernel` exists. Every name resolves; a call
fails. Nothing on the path of a dense model with the torch backends calls them.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "99.0.0"


class _Missing:
    """A kernel that does not exist on a CPU."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: object, **__: object) -> object:
        raise NotImplementedError(f"cannot call sgl_kernel.{self.__name__}: it does not exist on a CPU")

    def __getattr__(self, name: str) -> "_Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every `sgl_kernel.*` an empty module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to execute."""


def __getattr__(name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


sys.meta_path.append(_Finder())
