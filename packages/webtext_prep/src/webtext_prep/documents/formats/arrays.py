"""Arrays in files between two phases."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep import storage
from webtext_prep.storage.stores.base import Location


def save_array(place: Location, array: npt.NDArray[Any]) -> None:
    """Write an array to a scratch file."""
    with storage.create(place, durable=False) as file:
        np.save(file, array, allow_pickle=False)


def load_array(place: Location) -> npt.NDArray[Any]:
    """What `save_array` wrote."""
    if storage.is_local(place):
        return np.load(storage.local_path(place), allow_pickle=False)
    with storage.open_for_reading(place) as file:
        return np.load(io.BytesIO(file.read()), allow_pickle=False)
