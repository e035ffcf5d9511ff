// Package must ends a test at an error that the test does not expect.
package must

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Get returns a function that returns v, or ends the test if err is not nil: f := must.Get(os.Open(path))(t).
func Get[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Open is Get for something that has to be closed: the test closes it at its end.
func Open[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		t.Cleanup(func() {
			switch c := any(v).(type) {
			case interface{ Close() }:
				c.Close()
			case io.Closer:
				_ = c.Close() // the test looks at it where it matters
			default:
				t.Errorf("%T has no Close", v)
			}
		})
		return v
	}
}

// Do ends the test if err is not nil.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Write writes a file, and makes the folders above it.
func Write(t testing.TB, path, text string) {
	t.Helper()
	Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	Do(t, os.WriteFile(path, []byte(text), 0o644))
}

// File writes a file in a new temporary folder, and returns its path.
func File(t testing.TB, name, text string) string {
	t.Helper()
	return filepath.Join(Folder(t, map[string]string{name: text}), name)
}

// Folder writes files, by name, in a new temporary folder, and returns its path.
func Folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		Write(t, filepath.Join(dir, name), text)
	}
	return dir
}

// Read returns the text of a file.
func Read(t testing.TB, path string) string {
	t.Helper()
	return string(Get(os.ReadFile(path))(t))
}

// Into returns what read reads into a T: must.Into[Config](t, json.Unmarshal, data).
func Into[T, From any](t testing.TB, read func(From, any) error, from From) (into T) {
	t.Helper()
	Do(t, read(from, &into))
	return into
}

// JSON reads a file of JSON.
func JSON[T any](t testing.TB, path string) T {
	t.Helper()
	return Into[T](t, json.Unmarshal, []byte(Read(t, path)))
}
