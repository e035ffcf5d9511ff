package policy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// toolTalk is a row with tools, and what TRL's trainers make of it with a chat template; scripts/fixtures/tool_talks.py writes it.
type toolTalk struct {
	Template  string          `json:"template"`
	Kind      string          `json:"kind"` // messages, assistant (of messages), completion or preference
	End       string          `json:"end"`
	Row       json.RawMessage `json:"row"`
	Sequences []struct {
		IDs    []int32 `json:"ids"`
		Labels []int   `json:"labels"` // where runs of trained tokens begin and end
	} `json:"sequences"`
}

// TestToolTalksAsTRL: conversations with tools have the tokens and labels of TRL, whatever shape their rows have.
func TestToolTalksAsTRL(t *testing.T) {
	templates := toolTemplates(t)
	policies := map[string]*policy.CausalLM{}
	n := 0
	for line := range strings.Lines(string(must.Get(os.ReadFile("testdata/tools/cases.jsonl"))(t))) {
		var c toolTalk
		must.Do(t, json.Unmarshal([]byte(line), &c))
		p := policies[c.Template]
		if p == nil {
			p = toolPolicy(t, templates[c.Template], c.End)
			defer p.Close()
			policies[c.Template] = p
		}
		row := must.Get(dataset.Parse(string(c.Row)))(t).(dataset.Object)
		for shape, row := range map[string]dataset.Object{"TRL's": row, "with tools in JSON": toolsInJSON(t, row), "OpenAI's": textArguments(t, row).(dataset.Object)} {
			n++
			t.Run(fmt.Sprintf("%s %s %d %s", c.Template, c.Kind, n, shape), func(t *testing.T) { checkToolTalk(t, p, c, row) })
		}
	}
}

// toolPolicy is a policy without weights that encodes with a chat template.
func toolPolicy(t *testing.T, template, end string) *policy.CausalLM {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.json": `{"model_type":"llama","vocab_size":512,"hidden_size":8,"intermediate_size":8,"num_hidden_layers":1,"num_attention_heads":1,
			"num_key_value_heads":1,"max_position_embeddings":65536,"rms_norm_eps":1e-5}`,
		"tokenizer.json":        string(must.Get(os.ReadFile("testdata/tools/tokenizer.json"))(t)),
		"tokenizer_config.json": fmt.Sprintf(`{"bos_token":"<|begin_of_text|>","eos_token":%q}`, end),
		"chat_template.jinja":   template,
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return must.Get(policy.ReadCausalLM(dir))(t)
}

func checkToolTalk(t *testing.T, p *policy.CausalLM, c toolTalk, row dataset.Object) {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	must.Do(t, os.WriteFile(path, must.Get(row.MarshalJSON())(t), 0o600))
	o := policy.EncodeOptions{MaxLength: 1 << 20, CompletionOnly: true, AssistantOnly: c.Kind == "assistant"}
	var samples []*rl.Sample
	if c.Kind == "preference" {
		encoded := must.Get(p.EncodePreferences(chat.Examples(dataset.Records(path), chat.Preference), o, false))(t)
		for _, unit := range encoded.Units {
			samples = append(samples, unit...)
		}
	} else {
		encoded := must.Get(p.Encode(chat.Examples(dataset.Records(path), chat.LanguageModelling, chat.PromptCompletion), o))(t)
		samples = policy.Samples(encoded.Sequences)
	}
	expect.Require(t, len(samples) == len(c.Sequences), "%d sequences, want %d", len(samples), len(c.Sequences))
	for i, want := range c.Sequences {
		if diff := cmp.Diff(want.IDs, samples[i].Tokens); diff != "" {
			got, _ := p.Tokenizer.Decode(samples[i].Tokens, false)
			text, _ := p.Tokenizer.Decode(want.IDs, false)
			t.Fatalf("sequence %d is\n%s\nwant\n%s", i+1, got, text)
		}
		trained := make([]bool, len(want.IDs)+1)
		for k := 0; k < len(want.Labels); k += 2 {
			for at := max(1, want.Labels[k]); at < want.Labels[k+1]; at++ { // nothing predicts the first token, which TRL labels
				trained[at] = true
			}
		}
		got := make([]bool, len(trained))
		for _, row := range samples[i].Rows {
			got[row+1] = true
		}
		if diff := cmp.Diff(trained, got); diff != "" {
			t.Errorf("sequence %d: trained tokens (-TRL +ours): %s", i+1, diff)
		}
	}
}

func toolsInJSON(t *testing.T, row dataset.Object) dataset.Object {
	tools, _ := row.Get("tools")
	list, ok := tools.([]any)
	if !ok {
		return row
	}
	parts := make([]string, len(list))
	for i, tool := range list {
		parts[i] = string(must.Get(tool.(dataset.Object).MarshalJSON())(t))
	}
	return row.With("tools", "["+strings.Join(parts, ",")+"]")
}

// textArguments is a value with the arguments of calls in a string.
func textArguments(t *testing.T, value any) any {
	switch v := value.(type) {
	case dataset.Object:
		out := dataset.Object{}
		for _, f := range v {
			f.Value = textArguments(t, f.Value)
			if arguments, ok := f.Value.(dataset.Object); ok && f.Name == "arguments" {
				f.Value = string(must.Get(arguments.MarshalJSON())(t))
			}
			out = append(out, f)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, one := range v {
			out[i] = textArguments(t, one)
		}
		return out
	}
	return value
}
