package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/rltrain/rltrain/internal/files"
)

// Row is one line of metrics.jsonl: numbers, strings and booleans by name.
//
// Names under "time/" are times in seconds and names under "gpu/" are GPU memory. All other values of a stopped and
// resumed run equal those of an uninterrupted one.
type Row map[string]any

// MarshalJSON encodes a row with sorted keys and the shortest numbers that round-trip. JSON has no NaN or infinity: both
// become null, which pandas, jq and DuckDB read as a missing number. A value that is not a number, string or bool is an
// error that names its key.
func (r Row) MarshalJSON() ([]byte, error) {
	out := make(map[string]any, len(r))
	for key, value := range r {
		switch v := value.(type) {
		case float64, float32:
			if _, finite := number(v); !finite {
				value = nil
			}
		case nil, string, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		default:
			return nil, fmt.Errorf("metric %q: type %T is not a number, string or bool", key, value)
		}
		out[key] = value
	}
	return files.EncodeLine(out)
}

// ReadMetrics reads metrics.jsonl. Numbers become float64, null becomes nil. Errors name the file and line. It skips a last
// line without a line feed, which is still being written or was cut off by a kill.
func ReadMetrics(path string) ([]Row, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows, err := parseMetrics(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

func parseMetrics(data []byte) ([]Row, error) {
	var rows []Row
	for number := 1; ; number++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			return rows, nil
		}
		data = rest
		row, err := parseRow(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		rows = append(rows, row)
	}
}

func parseRow(line []byte) (Row, error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	var row Row
	if err := dec.Decode(&row); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("incomplete JSON object")
	} else if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, errors.New("want a JSON object, got null")
	}
	if rest := bytes.TrimSpace(line[dec.InputOffset():]); len(rest) > 0 {
		return nil, errors.New("text after the JSON object")
	}
	for _, key := range slices.Sorted(maps.Keys(row)) {
		switch row[key].(type) {
		case nil, float64, string, bool:
		default:
			return nil, fmt.Errorf("metric %q: not a number, string or bool", key)
		}
	}
	return row, nil
}

// Numbers returns the values of x and y from the rows that have both, as two slices of equal length. It skips NaN and
// infinity.
func Numbers(rows []Row, x, y string) (xs, ys []float64) {
	for _, row := range rows {
		a, okA := number(row[x])
		b, okB := number(row[y])
		if okA && okB {
			xs, ys = append(xs, a), append(ys, b)
		}
	}
	return xs, ys
}

// number converts the value of a metric to a finite float64.
func number(v any) (float64, bool) {
	var f float64
	switch v := v.(type) {
	case float64:
		f = v
	case float32:
		f = float64(v)
	case int:
		f = float64(v)
	case int64:
		f = float64(v)
	default:
		return 0, false
	}
	return f, !math.IsNaN(f) && !math.IsInf(f, 0)
}
