"""Leaves as arrays: the same values, or a SpecError with a solution."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import SpecError
from fastfeed.core.batch import infer
from fastfeed.core.collate import collate
from fastfeed.core.dtypes import decoded, encoded
from fastfeed.core.leaves import array_of

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=5)


@given(st.lists(any_text | st.binary(max_size=5).map(lambda b: b.decode("utf-8", "replace"))))
def test_text_survives_the_way_through_bytes(texts: list[str]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    assert decoded(encoded(array)).tolist() == texts


@given(st.binary())
def test_file_names_travel_as_their_own_bytes(name: bytes) -> None:
    text = name.decode("utf-8", "surrogateescape")  # what os.fsdecode gives on Linux
    data = encoded(np.array([text], object))
    assert decoded(data).tolist() == [text]
    if b"\xed" not in name:  # such as a surrogate that is encoded itself
        assert data.tolist() == [name]


@given(st.lists(st.binary(max_size=4), min_size=1) | st.lists(any_text, min_size=1))
def test_zeros_at_the_end_of_text_and_bytes_stay(values: list[Any]) -> None:
    assert array_of(values, "x").tolist() == values


def test_arrays_of_bytes_keep_their_dtype() -> None:
    assert array_of([b"a", b"bc"], "x").dtype == np.dtype("S2")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.ma.masked_array([1.0, -999.0], [0, 1]), r"1 masked values.*x\.filled\(value\)"),
        (np.ma.masked_array([1, 2], [1, 1]), "2 masked values"),
        ([2**63 + 1, 2], r"integer 9223372036854775809 .*np\.uint64"),
        ([2**53 + 1, 0.5], "integer 9007199254740993"),
        ([np.uint64(2**64 - 1), -1], "integer 18446744073709551615"),
        ([2**70, 1], "holds int"),
        (np.array([decimal.Decimal(1)]), r"holds Decimal.*float\(x\)"),
        (np.array([datetime.date(2020, 1, 1)]), "holds date"),
        (np.array([None, 1]), "holds NoneType and int"),
        (["a", b"b"], "holds str"),
        (np.zeros(2, "M8[s]"), r"datetime64\[s\].*astype\('int64'\)"),
        (np.zeros(2, "m8[D]"), r"timedelta64\[D\].*astype\('int64'\)"),
        (np.zeros(2, "i4,f4"), "dict of the fields"),
        ([[1], [2, 3]], "ragged list.*pad=True"),
    ],
)
def test_what_would_change_is_refused_with_a_solution(values: Any, said: str) -> None:
    with pytest.raises(SpecError, match=r"batch\[1\] of the first batch.*" + said):
        infer((np.zeros(2), values))


class Variable:
    """A variable of a file, which reads as a masked array."""

    shape, dtype = (2,), np.dtype("f8")

    def __getitem__(self, at: Any) -> Any:
        return np.ma.masked_equal([1.0, -999.0], -999.0)[at]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self[:]


def test_a_mask_that_comes_with_the_values_is_refused() -> None:
    with pytest.raises(SpecError, match=r"1 masked values.*x\.filled"):
        array_of(Variable(), "x")


@pytest.mark.parametrize(
    "values",
    [
        [2**53, 0.5],
        [2**63 + 1, 2**63],
        [-(2**63), 5],
        [1e300, 1],
        [float("nan"), float("inf"), 3],
        [True, 2],
        [1j, 2],
        np.ma.masked_array([1.0, 2.0]),
        np.float32([1, 2]).astype(np.longdouble) / 3,
        np.array([2**64 - 1], np.uint64),
        np.arange(6)[::-2],
        range(3),
    ],
)
def test_what_fits_stays_equal(values: Any) -> None:
    found = array_of(values, "x")
    np.testing.assert_array_equal(found, np.asarray(values))
    assert all(x == y for x, y in zip(found.tolist(), values, strict=True) if y == y)


def test_string_dtype_is_text_and_its_missing_values_are_refused() -> None:
    dtypes = pytest.importorskip("numpy.dtypes")
    if not hasattr(dtypes, "StringDType"):
        pytest.skip("numpy before 2")
    texts = ["a", "b\0", "\u4e2d" * 30]
    batch = np.array(texts, dtypes.StringDType())
    spec = infer(batch)
    assert spec.leaves[0].text and spec.rebuild(spec.check(batch, "x")).tolist() == texts
    with pytest.raises(SpecError, match="holds NoneType and str"):
        infer(np.array(["a", None], dtypes.StringDType(na_object=None)))


@pytest.mark.parametrize("record", [[1.0, -999.0], [[1.0], [-999.0]]])
def test_a_record_with_a_mask_is_refused(record: Any) -> None:
    masked = np.ma.masked_equal(record, -999.0)
    with pytest.raises(SpecError, match=r"record\['x'\] of batch 3 has 1 masked values"):
        collate([{"x": masked}] * 2, None, place="batch 3")


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array", "coo_array"])
def test_sparse_matrices_are_refused_with_the_way_out(kind: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = getattr(sparse, kind)(np.eye(3))
    with pytest.raises(SpecError, match=r"batch of the first batch is a \w+.*x\.toarray\(\)"):
        infer(matrix)
    with pytest.raises(SpecError, match=r"record\[0\] of b is a \w+.*x\.toarray\(\)"):
        collate([(matrix,)], None, place="b")


TENSORS = {
    "float32": lambda torch: torch.arange(3.0),
    "0-d": lambda torch: torch.tensor(2.5),
    "strided": lambda torch: torch.arange(12.0).reshape(3, 4).T[::2],
    "requires_grad": lambda torch: torch.arange(3.0, requires_grad=True) * 2,
    "Parameter": lambda torch: torch.nn.Parameter(torch.ones(2, 2)),
    "conj": lambda torch: torch.tensor([1 + 2j, 3]).conj(),
    "neg": lambda torch: torch.tensor([1 + 2j, 3]).conj().imag,
    "bfloat16": lambda torch: torch.arange(6).reshape(3, 2).to(torch.bfloat16).T,
    "float8_e4m3fn": lambda torch: torch.arange(3.0).to(torch.float8_e4m3fn),
    "float8_e5m2": lambda torch: torch.arange(3.0).to(torch.float8_e5m2),
    "bfloat16 with gradient": lambda torch: torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_torch_that_numpy_alone_refuses(kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = TENSORS[kind](torch)
    found = array_of(tensor, "x")
    assert found.dtype.name == str(tensor.dtype).removeprefix("torch.")
    assert found.tolist() == tensor.detach().to(torch.complex128).tolist()


REFUSED_TENSORS = {
    "sparse": (lambda torch: torch.eye(3).to_sparse(), r"x\.to_dense\(\)"),
    "csr": (lambda torch: torch.eye(3).to_sparse_csr(), r"x\.to_dense\(\)"),
    "nested": (lambda torch: torch.nested.nested_tensor([torch.ones(2)]), r"x\.unbind\(\)"),
    "jagged": (
        lambda torch: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        r"x\.unbind\(\)",
    ),
    "quantized": (
        lambda torch: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        r"x\.dequantize\(\)",
    ),
    "meta": (lambda torch: torch.empty(3, device="meta"), r"meta.*x\.cpu\(\)"),
    "complex32": (lambda torch: torch.ones(3, dtype=torch.complex32), "another dtype"),
}


@pytest.mark.parametrize("kind", REFUSED_TENSORS)
@pytest.mark.filterwarnings("ignore")  # of torch, about kinds of tensors that it will drop
def test_tensors_that_no_array_holds_are_refused(kind: str) -> None:
    torch = pytest.importorskip("torch")
    make, way = REFUSED_TENSORS[kind]
    with pytest.raises(SpecError, match=r"batch\['x'\] of the first batch is a \w+ \(.*" + way):
        infer({"x": make(torch)})


def test_small_floats_of_torch_need_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(SpecError, match=r"torch\.bfloat16.*install ml_dtypes.*x\.float\(\)"):
        array_of(torch.ones(3, dtype=torch.bfloat16), "x")
