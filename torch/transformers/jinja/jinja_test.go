package jinja

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clock is the time of strftime_now in the cases.
var clock = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// readCases reads the variables of testdata/templates.jsonl, and the templates with what transformers makes of them;
// Text is nil where it raises.
func readCases(t testing.TB) (*Dict, []templateCase) {
	t.Helper()
	data, err := os.ReadFile("testdata/templates.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	variables, rest, _ := strings.Cut(string(data), "\n")
	v, err := ParseJSON([]byte(variables))
	if err != nil {
		t.Fatal(err)
	}
	var cases []templateCase
	for line := range strings.Lines(rest) {
		var c templateCase
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return v.(*Dict), cases
}

type templateCase struct {
	Template  string   `json:"template"`
	Text      *string  `json:"text"`
	Generated [][2]int `json:"generated"`
	Why       string   `json:"why"`
}

func TestRenderAsTransformers(t *testing.T) {
	variables, cases := readCases(t)
	for _, c := range cases {
		got, err := render(c.Template, variables)
		switch {
		case c.Text == nil && err == nil:
			t.Errorf("%q: %q, want an error: %s", c.Template, got.Text, c.Why)
		case c.Text != nil && err != nil:
			t.Errorf("%q: %v", c.Template, err)
		case c.Text != nil:
			if diff := cmp.Diff(*c.Text, got.Text); diff != "" {
				t.Errorf("%q: %s", c.Template, diff)
			}
			spans := [][2]int{}
			for _, s := range got.Generated {
				spans = append(spans, [2]int{s.Start, s.End})
			}
			if diff := cmp.Diff(c.Generated, spans); diff != "" {
				t.Errorf("%q: generated: %s", c.Template, diff)
			}
		}
	}
}

func render(template string, variables *Dict) (Rendering, error) {
	parsed, err := Parse(template)
	if err != nil {
		return Rendering{}, err
	}
	return parsed.Render(variables, clock)
}
