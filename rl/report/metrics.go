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
)

// Row is one line of metrics.jsonl: names to numbers, texts or truth values.
//
// Names under "time/" are measurements of the clock, those under "gpu/" of a
// GPU's memory. Only they may differ between a run and the same run stopped
// and resumed.
type Row map[string]any

// Metrics appends rows to a metrics.jsonl: one JSON object a line, keys
// sorted, numbers in the shortest form that reads back to the same value.
//
// JSON has no NaN and no infinity: both are written as null, which readers of
// JSON lines (pandas, jq, DuckDB) take for a missing number, so the column
// stays numeric.
type Metrics struct{ log *logFile }

// CreateMetrics starts an empty file.
func CreateMetrics(path string) (*Metrics, error) {
	log, err := createLogFile(path)
	if err != nil {
		return nil, err
	}
	return &Metrics{log}, nil
}

// OpenMetricsAt goes on with the file of a stopped run from offset, the value
// of [Metrics.Offset] at its checkpoint: what was written later is cut off. A
// file that is shorter, or has no line end there, is an error.
func OpenMetricsAt(path string, offset int64) (*Metrics, error) {
	log, err := openLogFileAt(path, offset)
	if err != nil {
		return nil, err
	}
	return &Metrics{log}, nil
}

// Write appends one row. Values may be of any integer or float type, string
// or bool; anything else is an error naming its key.
func (m *Metrics) Write(row Row) error {
	line, err := encodeRow(row)
	if err != nil {
		return fmt.Errorf("%s: %w", m.log.f.Name(), err)
	}
	if err := m.log.append(line); err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}
	return nil
}

// Offset waits until every row is on disk and returns the length of the file
// in bytes, for the checkpoint.
func (m *Metrics) Offset() (int64, error) { return m.log.sync() }

// Close closes the file.
func (m *Metrics) Close() error { return m.log.f.Close() }

func encodeRow(row Row) ([]byte, error) {
	out := []byte{'{'}
	for i, key := range slices.Sorted(maps.Keys(row)) {
		if i > 0 {
			out = append(out, ',')
		}
		value := row[key]
		switch v := value.(type) {
		case float64:
			if math.IsNaN(v) || math.IsInf(v, 0) {
				value = nil
			}
		case float32:
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				value = nil
			}
		case nil, string, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		default:
			return nil, fmt.Errorf("metric %q: a %T is no number, text or truth value", key, value)
		}
		for j, part := range []any{key, value} {
			if j == 1 {
				out = append(out, ':')
			}
			text, err := encodeJSON(part)
			if err != nil {
				return nil, fmt.Errorf("metric %q: %w", key, err)
			}
			out = append(out, text...)
		}
	}
	return append(out, '}', '\n'), nil
}

func encodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// ReadMetrics reads a metrics.jsonl. Numbers come as float64, null as nil.
// An error names file and line. A last line without its newline is one that
// is being written, or that a kill cut short, and is left out.
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
		return nil, errors.New("not a whole JSON object")
	} else if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, errors.New("null instead of an object")
	}
	if rest := bytes.TrimSpace(line[dec.InputOffset():]); len(rest) > 0 {
		return nil, errors.New("text after the object")
	}
	for _, key := range slices.Sorted(maps.Keys(row)) {
		switch row[key].(type) {
		case nil, float64, string, bool:
		default:
			return nil, fmt.Errorf("metric %q: no number, text or truth value", key)
		}
	}
	return row, nil
}

// Numbers returns the rows that hold finite numbers under both names, as two
// slices of equal length: what a curve is drawn from.
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

// number is the value of a metric as a finite float64.
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
