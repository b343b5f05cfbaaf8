"""External data of ONNX models: tensors in other files than the model, found without the library onnx.

ONNX Runtime reads such files relative to the working folder, and the fingerprint of a model does not cover
them. A model is a message of protobuf (https://protobuf.dev/programming-guides/encoding); only the fields
that lead to a tensor are followed (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retrieval.errors import InputError

# The fields of each message that lead to a tensor, by number, and the message in them.
PATHS: Mapping[str, Mapping[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # fields of a TensorProto
_KEY, _VALUE = 1, 2  # fields of an entry of its external data
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LONGEST = 60  # characters of a location in a message


def refuse_external_data(where: str, model: bytes | memoryview) -> None:
    """Raise an `InputError` if a model has tensors in other files, or is not a message of protobuf.

    Args:
        where: Start of the message, such as the model file.
        model: ONNX model.
    """
    try:
        location = external_location(memoryview(model))
    except ValueError as error:
        raise InputError(f"{where}: not a complete ONNX model ({error}); export it again") from error
    if location is not None:
        shown = location if len(location) <= _LONGEST else f"{location[:_LONGEST]}..."
        what = f"{where}: has weights in another file ({shown or 'without a name'}), which is not read"
        raise InputError(f"{what}; save the model as one file, without external data")


def external_location(model: memoryview) -> str | None:
    """Return the file of the first tensor that is in another one; `None` if there is no such tensor.

    Protobuf joins a message that comes in several pieces, and the last value of a field counts. Here one
    piece with external data is enough.

    Raises:
        ValueError: The bytes are not a message of protobuf.
    """
    todo = [("ModelProto", 0, len(model))]
    while todo:
        kind, start, end = todo.pop()
        paths = PATHS[kind]
        for field, wire_type, first, last in _fields(model, start, end):
            if wire_type == _BYTES and field in paths:
                todo.append((paths[field], first, last))
            elif (field, wire_type, kind) == (_DATA_LOCATION, _VARINT, "TensorProto") and first & 0xFFFFFFFF:
                return _location(model, start, end)
    return None


def _location(model: memoryview, start: int, end: int) -> str:
    """Return the file in the external data of a tensor; "" if there is none."""
    for field, wire_type, first, last in _fields(model, start, end):
        if field == _EXTERNAL_DATA and wire_type == _BYTES:
            parts = _fields(model, first, last)
            entry = {number: bytes(model[a:b]) for number, kind, a, b in parts if kind == _BYTES}
            if entry.get(_KEY) == b"location":
                return entry.get(_VALUE, b"").decode(errors="replace")
    return ""


def _fields(model: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, and value and 0, or start and end of the bytes."""
    at = start
    while at < end:
        tag, at = _varint(model, at, end)
        field, wire_type = (tag & 0xFFFFFFFF) >> 3, tag & 7  # protobuf drops what is beyond 32 bits
        value = last = 0
        if wire_type == _BYTES:
            size, value = _varint(model, at, end)
            at = last = value + size
        elif wire_type == _VARINT:
            value, at = _varint(model, at, end)
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
        else:  # the groups of an older protobuf
            raise ValueError(f"wire type {wire_type} at byte {at}")
        if at > end or not field:
            raise ValueError(f"cut off or damaged at byte {min(at, end)}")
        yield field, wire_type, value, last


def _varint(model: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    number = shift = 0
    while at < end and shift < 70:
        byte = model[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise ValueError(f"cut off or damaged at byte {at}")
