package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// clock is the time of strftime_now in the cases.
var clock = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// readCases reads testdata/templates.jsonl: the variables, and the templates with transformers' output; Text is nil if
// it raises.
func readCases(t testing.TB) (*Dict, []templateCase) {
	t.Helper()
	data := must.Get(os.ReadFile("testdata/templates.jsonl"))(t)
	variables, rest, _ := strings.Cut(string(data), "\n")
	v := must.Get(ParseJSON([]byte(variables)))(t)
	var cases []templateCase
	for line := range strings.Lines(rest) {
		c := must.Into[templateCase](t, json.Unmarshal, []byte(line))
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
			expect.Equal(t, *c.Text, got.Text, c.Template)
			spans := [][2]int{}
			for _, s := range got.Generated {
				spans = append(spans, [2]int{s.Start, s.End})
			}
			expect.Equal(t, c.Generated, spans, fmt.Sprintf("%q: generated", c.Template))
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

func TestErrorsNameTheLine(t *testing.T) {
	variables, _ := readCases(t)
	for _, tt := range []struct {
		template string
		line     int
		want     string
	}{
		{"a\n{% nope %}", 2, `unknown tag "nope"`},
		{"{% include 'x' %}", 1, "not supported in a chat template"},
		{"{% if x %}\n\n", 1, "the tag has no elif or else or endif"},
		{"\n{{ f(*args) }}", 2, "argument unpacking"},
		{"{# a\n", 1, "the comment has no end"},
		{"\n\n{{ 'x", 3, "the string has no end"},
		{"{{ 1 ! 2 }}", 1, "unexpected character"},
		{`{{ '\u12' }}`, 1, "bad escape"},
		{"{{ (1] }}", 1, "unexpected ']'"},
		{"{{ 99999999999999999999 }}", 1, "bad integer"},
		{"{% set true = 1 %}", 1, "cannot assign"},
		{"{% for x in l %}\n{{ x.y.z }}{% endfor %}", 2, "'int object' has no attribute 'y'"},
		{"\n{{ nope.x }}", 2, "'nope' is undefined"},
		{"{{ l\n | nofilter }}", 2, `no filter "nofilter"`},
		{"\n{{ s is nice }}", 2, `no test "nice"`},
		{"{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}", 2, "division by zero"},
		{"{% macro m() %}\n\n{% endmacro %}{{ m() + 1 }}", 3, "cannot be combined"},
		{"\n\n{{ raise_exception('no') }}", 3, "no"},
		{"{% break %}", 1, "outside a loop"},
		{"{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", 1, "leaves a generation block"},
		{"{{ 9223372036854775807 + 1 }}", 1, "beyond 64 bits"},
		{"{{ {1: 2} }}", 1, "key is no string"},
		{"{{ strftime_now('%Q') }}", 1, "not supported"},
		{"{{ namespace(_x=1) }}", 1, "underscore"},
	} {
		_, err := render(tt.template, variables)
		e, ok := err.(*Error)
		expect.True(t, ok && e.Line == tt.line && strings.Contains(e.Error(), tt.want) && !strings.Contains(e.Error(), "\n"), "%q: %v, want line %d: %s", tt.template, err, tt.line, tt.want)
		var raised *Raised
		expect.Same(t, strings.Contains(tt.template, "raise_exception"), errors.As(err, &raised), "%q: %v is raised by the template: %t", tt.template, err, raised != nil)
	}
}

// Templates with unbounded memory or time stop with an error.
func TestLimits(t *testing.T) {
	grow := func(x string) string {
		return "{% set ns = namespace(x=" + x + ") %}{% for i in range(90000) %}{% for j in range(90000) %}{% set ns.x = %s %}{% endfor %}{% endfor %}"
	}
	use := func(template, step string) string { return strings.Replace(template, "%s", step, 1) }
	for _, tt := range []struct{ name, template string }{
		{"steps", "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"},
		{"doubled string", use(grow("'ab'"), "ns.x ~ ns.x")},
		{"doubled list", use(grow("[1]"), "ns.x + ns.x")},
		{"long string", "{{ 'abcdefgh' * 1000000000 }}"},
		{"long list", "{{ [1] * 1000000000 }}"},
		{"replaced", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}"},
		{"joined", "{{ ('a' * 100000) | join('b' * 100000) }}"},
		{"indented", "{{ ('\n' * 100000) | indent(100000) }}"},
		{"padded", "{{ 'a'.center(60000000) ~ 'a'.center(60000000) }}"},
		{"output", "{% set x = 'a' * 1000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}"},
		{"recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"},
		{"loop recursion", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"},
		{"deep value", "{% set ns = namespace(x=1) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"},
		{"deep JSON", "{% set ns = namespace(x=1) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}"},
		{"wide value printed", "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"},
		{"wide values compared", "{% set ns = namespace(x=1, y=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"},
		{"nested brackets", "{{ " + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) + " }}"},
		{"nested tags", strings.Repeat("{% if 1 %}", 10000)},
		{"signs", "{{ " + strings.Repeat("-", 100000) + "1 }}"},
		{"nots", "{{ " + strings.Repeat("not ", 100000) + "1 }}"},
		{"operators", "{{ 1" + strings.Repeat(" + 1", 100000) + " }}"},
		{"attributes", "{{ a" + strings.Repeat(".a", 100000) + " }}"},
		{"filters", "{{ a" + strings.Repeat("|e", 100000) + " }}"},
		{"inline ifs", "{{ 1" + strings.Repeat(" if 1 else 1", 100000) + " }}"},
		{"source", strings.Repeat("a", maxSource+1)},
		{"power", "{{ 1 ** 9000000000 }}{{ 2 ** 9000000000 }}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := render(tt.template, NewDict())
			expect.True(t, err != nil, "no error, but %d bytes", len(out.Text))
		})
	}
}

func TestClock(t *testing.T) {
	parsed := must.Get(Parse("{% if dated %}{{ strftime_now('%Y') }}{% endif %}"))(t)
	d := NewDict()
	_, err := parsed.Render(d, time.Time{})
	expect.True(t, err == nil, "a clock that is not read: %v", err)
	d.Set("dated", true)
	expect.Failure(parsed.Render(d, time.Time{}))(t, "asks for the time")
}

func TestGenerationInAString(t *testing.T) {
	out := must.Get(render("a{% set x %}{% generation %}b{% endgeneration %}{% endset %}{% generation %}c{% generation %}d{% endgeneration %}{% endgeneration %}{{ x }}", NewDict()))(t)
	expect.Equal(t, Rendering{Text: "acdb", Generated: []Span{{2, 3}, {1, 3}}, Unplaced: true}, out)
}

func TestParseJSON(t *testing.T) {
	v := must.Get(ParseJSON([]byte(`{"z":1,"a":[1.0,1e2,-0,12345678901234567890,null,"\u00e9"],"z":{"b":true}}`)))(t)
	d := NewDict()
	d.Set("v", v)
	out, err := render("{{ v | tojson }}", d)
	want := `{"z": {"b": true}, "a": [1.0, 100.0, 0, 12345678901234567890, null, "é"]}`
	expect.True(t, err == nil && out.Text == want, "%s, %v, want %s", out.Text, err, want)
	for _, bad := range []string{"", "{", "[1", `{"a"`, "1 2", "nul", strings.Repeat("[", 100000)} {
		v, err := ParseJSON([]byte(bad))
		expect.True(t, err != nil, "%.20q: %v", bad, v)
	}
}

// For any template, Parse and Render return, with text or an *Error.
func FuzzRender(f *testing.F) {
	variables, cases := readCases(f)
	for _, c := range cases {
		f.Add(c.Template)
	}
	f.Fuzz(func(t *testing.T, template string) {
		out, err := render(template, variables)
		if err == nil {
			for _, s := range out.Generated {
				expect.True(t, s.Start >= 0 && s.End >= s.Start && s.End <= len(out.Text), "span %v of %d bytes", s, len(out.Text))
			}
		} else if _, ok := err.(*Error); !ok {
			t.Errorf("%T: %v", err, err)
		}
	})
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,2.5,"x",null,true],"b":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := ParseJSON(data)
		if err != nil {
			return
		}
		d := NewDict()
		d.Set("v", v)
		out, err := render("{{ v | tojson }}", d)
		if err != nil {
			return // a number that JSON lacks, or depth
		}
		_, err = ParseJSON([]byte(out.Text))
		expect.True(t, err == nil || strings.Contains(out.Text, "Infinity"), "%s: %v", out.Text, err)
	})
}

// Integers keep their digits, as Python's do.
func TestLongIntegers(t *testing.T) {
	v := must.Get(ParseJSON([]byte(`{"a":12345678901234567890123,"b":-12345678901234567890123,"c":12345678901234567890123,"d":1e30}`)))(t)
	parsed := must.Get(Parse("{{ v | tojson }} {{ v.a }} {{ v.a == v.c }} {{ v.a == v.b }} {{ v.a is number }} {{ v.a is integer }} {{ v.d is integer }}"))(t)
	d := NewDict()
	d.Set("v", v)
	got, err := parsed.Render(d, clock)
	const want = `{"a": 12345678901234567890123, "b": -12345678901234567890123, "c": 12345678901234567890123, "d": 1e+30} 12345678901234567890123 True False True True False`
	expect.True(t, err == nil && got.Text == want, "%q, %v; want %q", got.Text, err, want)
}
