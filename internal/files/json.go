// Package files finds files, writes JSON atomically and reads it strictly.
package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/smallfile"
)

// Exist says whether there is a file or folder at path.
func Exist(path ...string) bool {
	_, err := os.Stat(filepath.Join(path...))
	return err == nil
}

// Same says whether both paths lead to one file or folder.
func Same(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// SaveJSON writes v to path, indented and atomically. A value that JSON cannot represent (NaN, infinity) is an error and
// leaves the file unchanged.
func SaveJSON(path string, v any) error {
	data, err := EncodeJSON(v)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return outfile.Write(path, data, 0o644)
}

// EncodeJSON returns the file content that SaveJSON writes.
func EncodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return buf.Bytes(), err
}

// EncodeLine returns v as JSON on one line, without a line feed and without HTML escapes.
func EncodeLine(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), err
}

// SaveLines writes rows to path, atomically, one line of JSON each.
func SaveLines[T any](path string, rows []T) error {
	var all []byte
	for i, row := range rows {
		line, err := EncodeLine(row)
		if err != nil {
			return fmt.Errorf("writing %s, line %d: %w", path, i+1, err)
		}
		all = append(append(all, line...), '\n')
	}
	return outfile.Write(path, all, 0o644)
}

// LoadJSON decodes path into the value that into points to. An unknown field, a wrong type or trailing data is an error
// with the file and, if known, the line.
func LoadJSON(path string, into any) error {
	data, err := smallfile.ReadAll(path)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("%s: unexpected end of file", path)
		case errors.As(err, &syntax):
			return fmt.Errorf("%s: line %d: %w", path, lineAt(data, syntax.Offset), err)
		case errors.As(err, &kind):
			return fmt.Errorf("%s: line %d: %sgot a %.100s, which has the wrong type", path, lineAt(data, kind.Offset), field(kind.Field), kind.Value)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	if rest := bytes.TrimSpace(data[dec.InputOffset():]); len(rest) > 0 {
		return fmt.Errorf("%s: line %d: trailing data after the value", path, lineAt(data, int64(len(data)-len(rest))))
	}
	return nil
}

// Object splits a JSON object into its members.
func Object(data []byte) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	if members == nil {
		return nil, errors.New("not a JSON object: found null")
	}
	return members, nil
}

// field names a field in an error; "" is the whole file.
func field(name string) string {
	if name == "" {
		return ""
	}
	return "field " + strconv.Quote(name) + ": "
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(offset, int64(len(data)))], []byte("\n"))
}
