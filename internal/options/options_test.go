package options

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

type word string

type rates struct {
	Rate float64 `option:"rate" default:"0.1" range:"(0,)" help:"a rate"`
	Warm int     `option:"warm" default:"3" range:"[0,10)" needs:"rate>0.5" help:"updates"`
}

type all struct {
	Flag  bool     `option:"flag" help:"a flag"`
	On    bool     `option:"on" default:"true" needs:"!flag" help:"another"`
	Count int      `option:"count" default:"5" range:"0|[2,9]" arg:"COUNT" help:"a count" group:"Own" incidental:"true"`
	Seed  uint64   `option:"seed" default:"42" help:"a seed"`
	Kind  word     `option:"kind" default:"a" allowed:"a,b,c" help:"a kind" percommand:"true"`
	Names []string `option:"names" default:"x,y" help:"names"`
	Path  string   `option:"path" needs:"kind=b|c and count>3 or flag" help:"a path"`
	Same  string   `option:"same" needs:"path,kind!=c" help:"needs what needs something"`
	Other string   `option:"other" needs:"path=@kind" help:"the value of another"`

	Inner rates  `prefix:"in_" group:"Inner" defaults:"rate=0.2"`
	Twice *rates `prefix:"twice_" needs:"flag"`
	Empty *rates `prefix:"empty_"`
	Any   any
	Plain string
}

func read(t *testing.T, structs ...any) *Set {
	t.Helper()
	return must.Get(Read(structs...))(t)
}

func TestRead(t *testing.T) {
	o := &all{Twice: &rates{}, Any: &struct {
		Last string `option:"last" help:"the last"`
	}{}, Plain: "kept"}
	s := read(t, o)
	var names []string
	for _, option := range s.All() {
		names = append(names, option.Name)
	}
	expect.Equal(t, strings.Fields("flag on count seed kind names path same other in_rate in_warm twice_rate twice_warm last"), names)
	expect.True(t, o.Inner.Rate == 0.2 && o.Twice.Rate == 0.1 && o.On && o.Count == 5 && o.Seed == 42 && o.Kind == "a" && len(o.Names) == 2 && o.Plain == "kept", "defaults: %+v", o)
	count, kind, rate := s.Find("count"), s.Find("kind"), s.Find("in_rate")
	expect.True(t, count.Group == "Own" && count.Incidental && count.Arg == "COUNT" && rate.Group == "Inner" && rate.Arg == "X" && kind.PerCommand && s.Find("Plain") == nil, "tags: %+v, %+v, %+v", count, kind, rate)
	kind.Set("c")
	expect.True(t, o.Kind == "c" && kind.Get() == "c" && kind.Default() == "a", "kind is %v, read as %v", o.Kind, kind.Get())
}

func TestReadRefuses(t *testing.T) {
	for want, o := range map[string]any{
		"is no pointer": rates{},
		"occurs twice":  &struct{ A, B rates }{},
		"cannot be of type int32": &struct {
			X int32 `option:"x" help:"x"`
		}{},
		"cannot be of type []int": &struct {
			X []int `option:"x" help:"x"`
		}{},
		"help is missing": &struct {
			X int `option:"x"`
		}{},
		"is not an interval": &struct {
			X int `option:"x" help:"x" range:"1,2"`
		}{},
		"is no condition": &struct {
			X int `option:"x" help:"x" needs:"y<3"`
		}{},
		"is no number": &struct {
			X int `option:"x" help:"x" needs:"y>z"`
		}{},
		"out of range": &struct {
			X int `option:"x" help:"x" range:"[1,2]" default:"3"`
		}{},
		"is not name=value": &struct {
			X rates `defaults:"rate"`
		}{},
		"default: 0 is out of rang": &struct {
			X rates `defaults:"rate=0"`
		}{},
	} {
		expect.Failure(Read(o))(t, want)
	}
}

func TestParse(t *testing.T) {
	s := read(t, &all{})
	for _, test := range []struct {
		name  string
		value Value
		want  any    // nil: an error
		wrong string // the error
	}{
		{"flag", Value{Text: "true"}, true, ""},
		{"flag", Value{Text: "False"}, false, ""},
		{"flag", Value{Text: "1", Syntax: Number}, nil, `"1" is not true or false`},
		{"flag", Value{Text: "yes"}, nil, `"yes" is not true or false`},
		{"count", Value{Text: "3"}, 3, ""},
		{"count", Value{Text: "3.0"}, 3, ""},
		{"count", Value{Text: "0"}, 0, ""},
		{"count", Value{Text: "3.5"}, nil, `"3.5" is not an integer`},
		{"count", Value{Text: "3e0"}, nil, `"3e0" is not an integer`},
		{"count", Value{Text: "1"}, nil, "1 is out of range; it must be 0, or 2 to 9"},
		{"count", Value{Text: "3", Syntax: Text}, nil, `"3" is not an integer`},
		{"count", Value{List: []string{"3"}, Syntax: List}, nil, "expected an integer, not a list"},
		{"seed", Value{Text: "18446744073709551615"}, uint64(18446744073709551615), ""},
		{"seed", Value{Text: "7.0"}, uint64(7), ""},
		{"seed", Value{Text: "-1"}, nil, `"-1" is not an integer of at least 0`},
		{"in_rate", Value{Text: "1e-3"}, 1e-3, ""},
		{"in_rate", Value{Text: "0"}, nil, "0 is out of range; it must be more than 0"},
		{"in_rate", Value{Text: "NaN"}, nil, `"NaN" is not a number`},
		{"in_rate", Value{Text: "1e999"}, nil, `"1e999" is not a number`},
		{"in_warm", Value{Text: "10"}, nil, "10 is out of range; it must be at least 0 and less than 10"},
		{"kind", Value{Text: "b"}, "b", ""},
		{"kind", Value{Text: "d"}, nil, `"d" is not one of a, b, c`},
		{"kind", Value{Text: "1", Syntax: Number}, nil, `1 is not text; put it in quotes: "1"`},
		{"path", Value{Text: "a\x00"}, nil, `"a\x00" is not valid UTF-8 text without NUL bytes`},
		{"names", Value{Text: "a, b"}, []string{"a", "b"}, ""},
		{"names", Value{Text: ""}, []string(nil), ""},
		{"names", Value{List: []string{"a"}, Syntax: List}, []string{"a"}, ""},
		{"names", Value{Text: "a,,b"}, nil, `"a,,b" is not a list of names`},
	} {
		got, err := s.Find(test.name).Parse(test.value)
		if test.wrong != "" {
			expect.True(t, err != nil && err.Error() == test.wrong, "%s=%v: error %v, want %s", test.name, test.value, err, test.wrong)
			continue
		}
		diff := cmp.Diff(test.want, got)
		expect.True(t, err == nil && diff == "", "%s=%v: error %v\n%s", test.name, test.value, err, diff)
	}
}

func TestNeeds(t *testing.T) {
	for _, test := range []struct {
		change func(o *all)
		option string
		want   string
	}{
		{func(o *all) {}, "on", ""},
		{func(o *all) { o.Flag = true }, "on", "with --flag=false"},
		{func(o *all) {}, "in_warm", "with --in-rate above 0.5"},
		{func(o *all) { o.Inner.Rate = 1 }, "in_warm", ""},
		{func(o *all) { o.Inner.Rate = 1 }, "twice_warm", "with --flag"},
		{func(o *all) { o.Flag = true }, "twice_warm", "with --twice-rate above 0.5"},
		{func(o *all) {}, "path", "with --kind b or c"},
		{func(o *all) { o.Kind, o.Count = "b", 3 }, "path", "with --count above 3"},
		{func(o *all) { o.Kind = "b" }, "path", ""},
		{func(o *all) { o.Flag = true }, "path", ""},
		{func(o *all) {}, "same", "with --kind b or c"},
		{func(o *all) { o.Flag = true }, "same", "with --path NAME"},
		{func(o *all) { o.Flag, o.Path, o.Kind = true, "p", "c" }, "same", "with another --kind than c"},
		{func(o *all) { o.Flag, o.Path = true, "p" }, "same", ""},
		{func(o *all) { o.Flag, o.Path = true, "b" }, "other", "with --path a"},
		{func(o *all) { o.Flag, o.Path = true, "a" }, "other", ""},
	} {
		o := &all{Twice: &rates{}}
		s := read(t, o)
		test.change(o)
		got := s.Missing(s.Find(test.option))
		expect.True(t, got == test.want && s.Applies(s.Find(test.option)) == (got == ""), "%s of %+v: %q, want %q", test.option, o, got, test.want)
	}
}

func TestRange(t *testing.T) {
	for text, test := range map[string]struct {
		words   string
		in, out []float64
	}{
		"[1,)":          {"at least 1", []float64{1, 1e300}, []float64{0.9}},
		"(0,1)":         {"more than 0 and less than 1", []float64{0.5}, []float64{0, 1}},
		"(,3]":          {"at most 3", []float64{-1e300, 3}, []float64{3.1}},
		"[0,1048576]":   {"0 to 1048576", []float64{0, 1048576}, []float64{-1, 1048577}},
		"0|[0.001,1e6]": {"0, or 0.001 to 1000000", []float64{0, 0.001, 1e6}, []float64{1e-12, 1e300, -1}},
		"[-1e6,1e6]":    {"-1000000 to 1000000", []float64{-1e6}, []float64{-2e6}},
		"[10,1e15]":     {"10 to 1e+15", []float64{10}, []float64{9}},
		"(0,1]":         {"more than 0 and at most 1", []float64{1}, []float64{0}},
		"":              {"", []float64{-1e300, 0}, nil},
	} {
		r, err := ParseRange(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		expect.True(t, text == "" || r.String() == test.words, "%s: %s, want %s", text, r, test.words)
		for _, x := range test.in {
			expect.True(t, r.Holds(x), "%s excludes %v", text, x)
		}
		for _, x := range test.out {
			expect.True(t, !r.Holds(x), "%s has %v", text, x)
		}
	}
}

// Any tag is read or refused.
func FuzzTags(f *testing.F) {
	for _, seed := range []string{"[1,2]", "0|(,)", "a=b|c,!d,e>1 or f and g!=h", "x=@y", "((,", "a>b", " or ", ","} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, tag, value string) {
		if r, err := ParseRange(tag); err == nil {
			_ = r.String()
		}
		o := &all{}
		s := read(t, o)
		if needs, err := parseNeeds(tag); err == nil {
			s.Find("flag").outer = needs
			if !strings.Contains(tag, "on") && !strings.Contains(tag, "flag") && !strings.Contains(tag, "twice") && !strings.Contains(tag, "path") && !strings.Contains(tag, "same") {
				s.Missing(s.Find("flag"))
			}
		}
		for _, option := range s.All() {
			if v, err := option.Parse(Value{Text: value}); err == nil {
				option.Set(v)
			}
		}
	})
}
