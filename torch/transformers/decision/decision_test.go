package decision

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

func value(t testing.TB, text string) jinja.Value {
	t.Helper()
	return must.Get(jinja.ParseJSON([]byte(text)))(t)
}

func parse(t testing.TB, c Config, text string) []Question {
	t.Helper()
	return must.Get(c.Parse(value(t, text).(*jinja.Dict)))(t)
}

func noControls() []string { return nil }

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                                     "questions is empty",
		`{"a":3}`:                                `question "a": want an object`,
		`{"a":{}}`:                               "type must be noul or choice or score",
		`{"a":{"type":"noul","weight":1}}`:       `"weight" is unknown; a noul question looks like {"type":"noul"`,
		`{"a":{"type":"noul","instructions":3}}`: "instructions must be",
		`{"a":{"type":"noul","criteria":{"maybe":"x"}}}`:              `"maybe" is neither "true" nor "false"`,
		`{"a":{"type":"noul","criteria":["x"]}}`:                      "criteria must be an object",
		`{"a":{"type":"choice"}}`:                                     "criteria must be an object",
		`{"a":{"type":"choice","criteria":{}}}`:                       "criteria must be an object",
		`{"a":{"type":"choice","criteria":{"x":1}}}`:                  `option "x" must be described`,
		`{"a":{"type":"choice","criteria":{"x":null,"y":null}}}`:      "at most 1 options of a choice question, here are 2",
		`{"a":{"type":"score"}}`:                                      "criteria must list at least one level",
		`{"a":{"type":"score","criteria":["x",null]}}`:                "level 1 must be",
		`{"a":{"type":"score","criteria":[]},"b":{"type":"nothing"}}`: `question "b": type must be`,
	} {
		expect.Failure((&Config{Labels: map[string][]string{Choice: {"1"}}}).Parse(value(t, text).(*jinja.Dict)))(t, want)
	}
	expect.Failure((&Config{}).Parse(value(t, `{"a":{},"b":{},"c":{"type":"noul"}}`).(*jinja.Dict)))(t, `question "a"`, `question "b"`)
}

func TestAnswers(t *testing.T) {
	questions := parse(t, Config{}, `{
		"noul":{"type":"noul"},
		"choice":{"type":"choice","criteria":{"x":null,"y":null,"z":null}},
		"score":{"type":"score","criteria":["low",{"a":1},"high"]},
		"one":{"type":"choice","criteria":{"x":null}},
		"level":{"type":"score","criteria":["x"]}}`)
	for i, test := range []struct {
		probabilities []float64
		want          string
	}{
		{[]float64{0.75, 0.25}, `{"type": "noul", "noul": 0.75}`},
		// (1/2 − 1/3)/(2/3)
		{[]float64{0.25, 0.5, 0.25}, `{"type": "choice", "choice": "y", "confidence": 0.25, "probabilities": {"x": 0.25, "y": 0.5, "z": 0.25}}`},
		// Σ level·p = 1; distances to level 0 are 1/4 + 2·3/8, and 2/3 for equal probabilities: below 0.
		{[]float64{0.375, 0.25, 0.375}, `{"type": "score", "score": 1.0, "legend": {"0": "low", "1": {"a": 1}, "2": "high"}, "confidence": 0.0, "probabilities": {"0": 0.375, "1": 0.25, "2": 0.375}}`},
		{[]float64{1}, `{"type": "choice", "choice": "x", "confidence": 1.0, "probabilities": {"x": 1.0}}`},
		{[]float64{1}, `{"type": "score", "score": 0.0, "legend": {"0": "x"}, "confidence": 1.0, "probabilities": {"0": 1.0}}`},
	} {
		got := must.Get(jinja.JSON(questions[i].Answer(test.probabilities)))(t)
		// 1/3 is no binary fraction.
		if i == 1 {
			answer := questions[i].Answer(test.probabilities)
			confidence, _ := answer.Get("confidence")
			expect.True(t, math.Abs(confidence.(float64)-0.25) <= 1e-12, "confidence %v", confidence)
			answer.Set("confidence", 0.25)
			got = must.Get(jinja.JSON(answer))(t)
		}
		expect.Equal(t, test.want, got, questions[i].Name)
	}
	score := questions[2].Answer([]float64{0.1, 0.1, 0.8}) // distances 0.1·2 + 0.1 = 0.3 to level 2: 1 − 0.3/(2/3)
	c, _ := score.Get("confidence")
	expect.True(t, math.Abs(c.(float64)-0.55) <= 1e-12, "confidence of a score: %v, want 0.55", c)
}

// TestGeneralPrompt has what transformers 5.23 writes.
func TestGeneralPrompt(t *testing.T) {
	settings := Config{Labels: map[string][]string{Noul: {"T", "F"}, Choice: {"1", "2", "3"}}, NoulOptions: []string{"false", "true"}}
	for _, test := range []struct {
		config      Config
		state, asks string
		want        string
	}{
		{Config{}, `"Hi."`, `{"type":"noul"}`, "Hi.\n\n\nAnswer Yes or No only."},
		{Config{}, `{"é":[1,2.0,null]}`, `{"type":"noul","instructions":["now"],"criteria":{"false":"later"}}`,
			"{\"é\": [1, 2.0, null]}\n\n[\"now\"]\nNo: later\nAnswer Yes or No only."},
		{settings, `""`, `{"type":"noul","criteria":{"true":"it is"}}`, "\n\nT: false\nF: it is\nAnswer T or F only."},
		{Config{}, `"x"`, `{"type":"choice","instructions":"Which?","criteria":{"a":"first","b":null,"c":{"n":1}}}`,
			"x\n\nWhich?\nA. a: first\nB. b\nC. c: {\"n\": 1}\nAnswer with the letter of the option that fits best (A to C) only."},
		{settings, `"x"`, `{"type":"choice","criteria":{"a":null,"b":null}}`,
			"x\n\n1. a\n2. b\nAnswer with the label of the option that fits best (1 to 2) only."},
		{Config{}, `"x"`, `{"type":"score","criteria":["low","high"]}`,
			"x\n\nA. low\nB. high\nAnswer with the letter of the level that fits best (A to B) only."},
	} {
		expect.Equal(t, test.want, must.Get(general(value(t, test.state), parse(t, test.config, `{"q":`+test.asks+`}`)[0]))(t), test.asks)
	}
}

// TestPieces: control tokens of a request are text, those of the template are tokens, and a mark ends a piece.
func TestPieces(t *testing.T) {
	dir := must.Folder(t,
		map[string]string{TemplateFile: `<s>{{ state }}{% for q in questions %}|{{ q.name }}:{{ q.options|join(",") }}<|mark|>{% endfor %}<|split|>end`})
	c, found, err := Load(dir)
	must.Do(t, err)
	expect.True(t, found, "the template was not found")
	r := Renderer{Controls: func() []string { return []string{"<s>", "<s>x"} }}
	state := value(t, `"a<s>xb<|mark|>`+quoteEnd+`c"`)
	questions := parse(t, c, `{"p":{"type":"noul"},"q":{"type":"choice","criteria":{"<s>":null}}}`)
	prompts := must.Get(c.Asker(r).Prompts(state, questions))(t)
	want := []Piece{
		{Text: "<s>a"}, {Text: "<s>x", Plain: true}, {Text: "b"}, {Text: "<|mark|>", Plain: true}, {Text: "c|p:true,false", Mark: true},
		{Text: "|q:"}, {Text: "<s>", Plain: true}, {Text: "", Mark: true}, {Text: ""}, {Text: "end"},
	}
	expect.Equal(t, 1, len(prompts))
	expect.Equal(t, want, prompts[0].Pieces)
	// As they are: only what would move a mark goes.
	off := false
	c.Sanitize = &off
	prompts = must.Get(c.Asker(r).Prompts(state, questions[:1]))(t)
	expect.Equal(t, []Piece{{Text: "<s>a<s>xb" + quoteEnd + "c|p:true,false", Mark: true}, {Text: ""}, {Text: "end"}}, prompts[0].Pieces)
	// Without a mark the model is read at the end, of one question.
	c, _, err = Load(must.Folder(t, map[string]string{TemplateFile: `{{ question.name }} {{ questions|length }}`}))
	must.Do(t, err)
	expect.Equal(t, 1, len(must.Get(c.Asker(r).Prompts(state, questions[:1]))(t)))
	expect.Failure(c.Asker(r).Prompts(state, questions))(t, "writes 1 <|mark|> for 2 questions")
}

func TestGeneralPromptGoesThroughTheChatTemplate(t *testing.T) {
	r := Renderer{Controls: noControls, Chat: must.Get(chat.Parse("test", `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}{{ enable_thinking }}`))(t)}
	c := Config{}
	prompts := must.Get(c.Asker(r).Prompts("s", parse(t, c, `{"p":{"type":"noul"},"q":{"type":"noul"}}`)))(t)
	expect.Equal(t, 2, len(prompts))
	expect.Equal(t, []Piece{{Text: "<user>s\n\n\nAnswer Yes or No only.<a>False", Mark: true}}, prompts[1].Pieces)
}

func TestLoadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                              "cannot unmarshal",
		`{"labels":{"rank":["a"]}}`:       `"rank" is not a type of question`,
		`{"temperature":{"noul":0}}`:      "temperature.noul is 0",
		`{"noul_options":["true","yes"]}`: "noul_options",
		`{"adapter":"lora"}`:              `adapter "lora"`,
	} {
		_, _, err := Load(must.Folder(t, map[string]string{ConfigFile: text}))
		expect.Error(t, err, want, ConfigFile)
	}
	_, _, err := Load(must.Folder(t, map[string]string{TemplateFile: "{% if %}"}))
	expect.Error(t, err, TemplateFile)
	c, found, err := Load(must.Folder(t,
		map[string]string{ConfigFile: `{"sort_choices":true,"temperature":{"score":2},"adapter":null}`}))
	must.Do(t, err)
	expect.True(t, found && c.TemperatureOf(Score) == 2 && c.TemperatureOf(Noul) == 1, "found %t, %+v", found, c)
	if _, found, err := Load(t.TempDir()); found || err != nil {
		t.Errorf("an empty folder: %t, %v", found, err)
	}
}

// FuzzParse: questions that are accepted have a label for each option, and a prompt that can be asked.
func FuzzParse(f *testing.F) {
	f.Add(`{"a":{"type":"noul","criteria":{"true":"x"}}}`, `"state"`)
	f.Add(`{"a":{"type":"choice","criteria":{"x":null,"<|mark|>":{"y":[1]}}},"b":{"type":"score","criteria":["l"]}}`, `{"x":1e400}`)
	f.Fuzz(func(t *testing.T, questions, state string) {
		v, err := jinja.ParseJSON([]byte(questions))
		s, failed := jinja.ParseJSON([]byte(state))
		named, ok := v.(*jinja.Dict)
		if err != nil || failed != nil || !ok {
			return
		}
		var c Config
		parsed, err := c.Parse(named)
		if err != nil {
			return
		}
		r := Renderer{Controls: noControls, Chat: must.Get(chat.Parse("test", `{{ messages[0].content }}`))(t)}
		prompts, err := c.Asker(r).Prompts(s, parsed)
		if err != nil {
			return
		}
		expect.True(t, len(prompts) == len(parsed), "%d prompts of %d questions", len(prompts), len(parsed))
		for i, q := range parsed {
			expect.True(t, len(q.Labels) == len(q.Options) && len(q.Descriptions) == len(q.Options) && len(q.Options) != 0, "%+v", q)
			for j, piece := range prompts[i].Pieces {
				last := j == len(prompts[i].Pieces)-1
				expect.True(t, piece.Mark == last, "piece %d of %+v", j, prompts[i].Pieces)
			}
		}
	})
}

// TestTemplateAsksAsTheGeneralPrompt: the template that is saved with a trained model writes what the general prompt does.
func TestTemplateAsksAsTheGeneralPrompt(t *testing.T) {
	r := Renderer{Controls: func() []string { return []string{"<s>"} }, Chat: must.Get(chat.Parse("test", "{% for m in messages %}<s>\n\"{{ m.role }}\"\n{{ m.content }}\n{% endfor %}{{ '\\n' }}a:"))(t)}
	settings := Config{Labels: map[string][]string{Noul: {"T", "F"}, Choice: {"1", "2", "3"}}, NoulOptions: []string{"false", "true"}}
	for _, c := range []Config{{}, settings} {
		general := c.Asker(r)
		text := must.Get(general.Template())(t)
		own := c
		must.Do(t, own.SetTemplate(text))
		for _, state := range []string{`"a<s>b"`, `{"é":[1,2.0,null],"k":"<s>"}`, `[]`, `""`} {
			for _, asks := range []string{
				`{"type":"noul"}`, `{"type":"noul","instructions":["now"],"criteria":{"false":"later"}}`, `{"type":"noul","instructions":""}`,
				`{"type":"choice","instructions":"Which <s>?","criteria":{"a":"first","b":null,"c":{"n":1}}}`, `{"type":"choice","criteria":{"a":""}}`,
				`{"type":"score","instructions":{},"criteria":["low",["x"],"high"]}`,
			} {
				q := parse(t, c, `{"q":`+asks+`}`)
				want := must.Get(general.Prompts(value(t, state), q))(t)
				expect.Same(t, "", cmp.Diff(want[0].Pieces, must.Get(own.Asker(r).Prompts(value(t, state), q))(t)[0].Pieces), "%s %s", state, asks)
			}
		}
		q := parse(t, c, `{"q":{"type":"score","instructions":"How?","criteria":["low",["x"]]}}`)[0]
		expect.Equal(t, q.Options, must.Get(ParseQuestion("q", q.Request()))(t).Options)
	}
}
