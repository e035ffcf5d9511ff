package files_test

import (
	"math"
	"path/filepath"
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
	got := must.Into[state](t, files.LoadJSON, path)
	expect.Equal(t, want, got)
	expect.Line(t, files.SaveJSON(path, state{Best: math.NaN()}), path, "NaN")
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
		must.Write(t, path, test.text)
		expect.Line(t, files.LoadJSON(path, &got), path, test.want)
	}
}

func TestEncodeLine(t *testing.T) {
	line := must.Get(files.EncodeLine(map[string]any{"text": "<a & b>\n"}))(t)
	expect.Same(t, `{"text":"<a & b>\n"}`, string(line), "line")
	_, err := files.EncodeLine(math.Inf(1))
	expect.Error(t, err, "Inf")
}
