"""Regular expressions that no text makes slow: RE2, as pyarrow brings it."""

import pyarrow as pa


class Pattern:
    """Found anywhere in a text. Raises ValueError for what is no RE2."""

    def __init__(self, text: str) -> None:
        # Imported here: 10 ms that only those pay who have patterns.
        import pyarrow.compute as pc

        self._options = pc.MatchSubstringOptions(text)
        self._call = pc.call_function
        try:
            self.found("")
        except pa.ArrowInvalid as error:
            raise ValueError(f"{text!r} is no RE2 pattern: {error}") from error

    def found(self, text: str) -> bool:
        answer: bool = self._call("match_substring_regex", [pa.array([text])], self._options)[0].as_py()
        return answer
