package files_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
)

func TestJSON(t *testing.T) {
	type state struct {
		Step int     `json:"step"`
		Best float64 `json:"best"`
		Text string  `json:"text"`
	}
	path := filepath.Join(t.TempDir(), "state.json")
	want := state{1 << 53, 0.1 + 0.2, "<a & b>"}
	must.Do(t, files.SaveJSON(path, want))
	var got state
	must.Do(t, files.LoadJSON(path, &got))
	expect.Equal(t, want, got)
	wantError(t, files.SaveJSON(path, state{Best: math.NaN()}), path, "NaN")
	expect.NoError(t, files.LoadJSON(path, &got), "a refused value damaged the file")
	for _, test := range []struct{ text, want string }{
		{"{\n\"step\": 1,\n\"speed\": 2}", `unknown field "speed"`},
		{"{\n\"step\": \"1\"}", "line 2"},
		{"{\n\"step\": 1,\n}", "line 3"},
		{"{\"step\": 1}\n{}", "line 2: trailing data"},
		{"{\"step\": 1}\n\n]", "line 3: trailing data"},
		{"{\"step\": 1", "unexpected end of file"},
		{"", "unexpected end of file"},
	} {
		put(t, path, test.text)
		wantError(t, files.LoadJSON(path, &got), path, test.want)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(text), 0o644))
}

// wantError checks that err is one line containing every part.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	expect.Require(t, err != nil, "no error; want one with %q", parts)
	expect.True(t, !strings.Contains(err.Error(), "\n"), "error of several lines: %q", err)
	for _, p := range parts {
		expect.True(t, strings.Contains(err.Error(), p), "error %q lacks %q", err, p)
	}
}
