package chat_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// clock is the time of strftime_now in the cases.
var clock = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// A chatCase is a conversation and transformers' rendering: the text and the bytes of its generation blocks, or nothing
// if it raises.
type chatCase struct {
	Name      string            `json:"name"`
	Template  string            `json:"template"`
	Messages  []chat.Message    `json:"messages"`
	Tools     json.RawMessage   `json:"tools"`
	Documents json.RawMessage   `json:"documents"`
	Prompt    bool              `json:"add_generation_prompt"`
	Special   map[string]string `json:"special"`
	Variables json.RawMessage   `json:"variables"`
	Text      *string           `json:"text"`
	Generated [][2]int          `json:"generated"`
}

func (c chatCase) options(t *testing.T) chat.Options {
	o := chat.Options{AddGenerationPrompt: c.Prompt, Special: c.Special, Now: clock, Tools: objects(t, c.Tools), Documents: objects(t, c.Documents)}
	o.Variables = map[string]jinja.Value{}
	v := must.Get(jinja.ParseJSON(c.Variables))(t)
	for _, name := range v.(*jinja.Dict).Keys() {
		o.Variables[name], _ = v.(*jinja.Dict).Get(name)
	}
	return o
}

// objects reads null or a list of objects.
func objects(t *testing.T, data json.RawMessage) []*jinja.Dict {
	v := must.Get(jinja.ParseJSON(data))(t)
	if v == nil {
		return nil
	}
	all := []*jinja.Dict{}
	for _, item := range v.(*jinja.List).Items {
		all = append(all, item.(*jinja.Dict))
	}
	return all
}

// The cases are in testdata, and in the file named by $RLTRAIN_CHAT_CASES.
func TestRenderAsTransformers(t *testing.T) {
	files := []string{"testdata/chats.jsonl"}
	if more := os.Getenv("RLTRAIN_CHAT_CASES"); more != "" {
		files = append(files, more)
	}
	for _, file := range files {
		data := must.Get(os.ReadFile(file))(t)
		n := 0
		for line := range strings.Lines(string(data)) {
			var c chatCase
			must.Do(t, json.Unmarshal([]byte(line), &c))
			n++
			t.Run(c.Name, func(t *testing.T) { checkChat(t, c) })
		}
		t.Logf("%d conversations of %s", n, file)
	}
}

func checkChat(t *testing.T, c chatCase) {
	templates := must.Get(chat.Parse("case", c.Template))(t)
	got, err := templates.Render(c.Messages, c.options(t))
	if c.Text == nil {
		expect.True(t, err != nil, "no error, but %q", got.Text)
		return
	}
	must.Do(t, err)
	expect.Equal(t, *c.Text, got.Text)
	spans := [][2]int{}
	for _, s := range got.Generated {
		spans = append(spans, [2]int{s.Start, s.End})
	}
	diff := cmp.Diff(c.Generated, spans)
	expect.True(t, diff == "" || got.Unplaced, "generated: : %v", diff)
}
