package policy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
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
		c := must.Into[toolTalk](t, json.Unmarshal, []byte(line))
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
		expect.Equal(t, trained, got, fmt.Sprintf("sequence %d: tokens that TRL trains", i+1))
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

// replyTemplates are more chat templates: of Mistral, whose calls are special tokens and need ids, and one that ends turns with
// white space alone.
var replyTemplates = map[string]string{
	"mistral": `{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]` +
		`{% elif m.role == 'tool' %}{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]` +
		`{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]</s>` +
		`{% else %} {{ m.content }}</s>{% endif %}{% endfor %}`,
	"plain": `{% for t in tools or [] %}{{ t | tojson }};{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}`,
	"gemma": `{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}`,
	"phi3": `{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% else %}{{ eos_token }}{% endif %}`,
	"granite": `{% for t in tools or [] %}<|start_of_role|>available_tools<|end_of_role|>{{ t | tojson }}<|end_of_text|>
{% endfor %}{% for m in messages %}<|start_of_role|>{{ 'tool_response' if m.role == 'tool' else m.role }}<|end_of_role|>{{ m.content }}{% if m.tool_calls %}<|tool_call|>{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endif %}<|end_of_text|>
{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}`,
	"deepseek r1": `{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}`,
}

// toolTemplates are these and those of TRL's cases.
func toolTemplates(t *testing.T) map[string]string {
	t.Helper()
	templates := must.JSON[map[string]string](t, "testdata/tools/templates.json")
	maps.Copy(templates, replyTemplates)
	return templates
}

// TestRepliesAsTemplatesWriteThem: what follows a turn with tool calls, or a plain turn, is what the complete conversation has
// there, for one call and for several.
func TestRepliesAsTemplatesWriteThem(t *testing.T) {
	templates := toolTemplates(t)
	ends := map[string]string{"qwen2.5": "<|im_end|>", "qwen2.5 marked": "<|im_end|>", "qwen3": "<|im_end|>", "qwen3 marked": "<|im_end|>", "llama3.1": "<|eot_id|>", "mistral": "</s>", "plain": "", "gemma": "", "phi3": "", "granite": "", "deepseek r1": ""}
	tool := must.Get(dataset.Parse(`{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}}`))(t)
	in := envs.TemplateInputs{Tools: []any{tool}}
	for name, end := range ends {
		p := toolPolicy(t, templates[name], "<|im_end|>")
		if end != "" && end != "</s>" {
			must.Do(t, p.EndAt(end))
		}
		for _, c := range []struct{ said, replies string }{
			{`{"role":"assistant","content":"hi"}`, `[{"role":"user","content":"more"}]`},
			{`{"role":"assistant","content":"","tool_calls":[{"id":"call00000","type":"function","function":{"name":"f","arguments":{"a":1}}}]}`, `[{"role":"tool","tool_call_id":"call00000","name":"f","content":"42"}]`},
			{`{"role":"assistant","content":"","tool_calls":[{"id":"call00000","type":"function","function":{"name":"f","arguments":{}}},{"id":"call00001","type":"function","function":{"name":"f","arguments":{"b":[]}}}]}`,
				`[{"role":"tool","tool_call_id":"call00000","name":"f","content":"42"},{"role":"tool","tool_call_id":"call00001","name":"f","content":"43"}]`},
		} {
			if strings.Count(c.said, "call0000") > 1 && name == "llama3.1" {
				continue // it knows single calls only
			}
			if strings.Contains(c.said, "call0000") && !strings.Contains(templates[name], "tool_calls") {
				continue // it knows no calls
			}
			replies := messagesOf(t, c.replies)
			before := joined(messagesOf(t, `[{"role":"user","content":"q"}]`), messagesOf(t, "["+c.said+"]"))
			whole := must.Get(p.EncodeObservation(envs.Observation{Messages: joined(before, replies), TemplateInputs: in}))(t)
			got := must.Get(p.EncodeReply(in, replies, false))(t)
			full, rest := must.Get(p.Tokenizer.Decode(whole, false))(t), must.Get(p.Tokenizer.Decode(got, false))(t)
			expect.True(t, strings.HasSuffix(full, rest), "%s: the reply is %q, but the conversation is %q", name, rest, full)
			for _, m := range replies {
				expect.True(t, strings.Contains(rest, m.Content), "%s: %q does not have %q", name, rest, m.Content)
			}
			expect.True(t, end == "</s>" || strings.HasPrefix(rest, end), "%s: %q does not begin with the end of the turn", name, rest)
			expect.True(t, !strings.Contains(rest, `"name": "f", "arg`), "%s: %q has the call, which the model has written", name, rest)
			if end == "" || end == "</s>" {
				continue
			}
			expect.Same(t, strings.TrimPrefix(rest, end), must.Get(p.Tokenizer.Decode(must.Get(p.EncodeReply(in, replies, true))(t), false))(t), "%s: after an end token", name)
		}
		p.Close()
	}
}

func messagesOf(t *testing.T, text string) (out []envs.Message) {
	t.Helper()
	for _, value := range must.Get(dataset.Parse(text))(t).([]any) {
		fields := value.(dataset.Object)
		role, _ := fields.Get("role")
		content, _ := fields.Get("content")
		out = append(out, envs.Message{Role: role.(string), Content: content.(string), Fields: fields})
	}
	return out
}

func joined(a, b []envs.Message) []envs.Message { return append(append([]envs.Message{}, a...), b...) }

// TestDroppedThoughts: Qwen 3 drops thoughts once the user speaks, but not after tools.
func TestDroppedThoughts(t *testing.T) {
	templates := toolTemplates(t)
	for name, want := range map[string][2]bool{
		"qwen3": {true, false}, "qwen3 marked": {false, false}, "qwen2.5": {false, false}, "llama3.1": {false, true}, "gemma": {false, false}, "phi3": {false, false},
		"granite": {false, false}, "deepseek r1": {true, true}, "plain": {false, false},
	} {
		p := toolPolicy(t, templates[name], "<|im_end|>")
		expect.Same(t, want, [2]bool{p.DropsThoughts(envs.RoleUser), p.DropsThoughts(envs.RoleTool)}, "%s, after the user and after a tool", name)
		p.Close()
	}
}

// TestMarksOfCallsAreText: the special token that begins a call is part of an action's text.
func TestMarksOfCallsAreText(t *testing.T) {
	templates := toolTemplates(t)
	const text = `<|python_tag|>{"name": "é", "parameters": {}}`
	for name, want := range map[string]string{"llama3.1": text, "qwen2.5": strings.TrimPrefix(text, "<|python_tag|>")} {
		p := toolPolicy(t, templates[name], "<|eot_id|>")
		ids := must.Get(p.Tokenizer.EncodeRaw(text+"<|eot_id|>", false))(t)
		got, ends, err := p.DecodeEnds(ids)
		expect.True(t, err == nil && got == want && len(ends) == len(ids) && ends[len(ends)-1] == len(got), "%s: %q, %v, %v", name, got, ends, err)
		p.Close()
	}
}

// TestSingleCallTemplates: results of several calls follow even where the template writes single calls only.
func TestSingleCallTemplates(t *testing.T) {
	templates := toolTemplates(t)
	p := toolPolicy(t, templates["llama3.1"], "<|eot_id|>")
	defer p.Close()
	replies := messagesOf(t, `[{"role":"tool","tool_call_id":"call00000","name":"f","content":"42"},{"role":"tool","tool_call_id":"call00001","name":"f","content":"43"}]`)
	ids := must.Get(p.EncodeReply(envs.TemplateInputs{}, replies, true))(t)
	text := must.Get(p.Tokenizer.Decode(ids, false))(t)
	expect.True(t, strings.Index(text, "42") < strings.Index(text, "43") && strings.HasPrefix(text, "<|start_header_id|>"), "%q", text)
}

// trlCase is a data set with the tokens and labels that TRL's SFTTrainer makes from it.
type trlCase struct {
	Name       string    `json:"name"`
	Model      string    `json:"model"` // a folder
	Data       string    `json:"data"`  // a file or a folder
	Validation bool      `json:"validation"`
	MaxLength  int       `json:"max_length"`
	Completion bool      `json:"completion_only_loss"`
	Assistant  bool      `json:"assistant_only_loss"`
	IDs        [][]int32 `json:"input_ids"`
	Labels     [][]int32 `json:"labels"` // -100 = not trained
	Loss       float64   `json:"loss"`
}

// $RLTRAIN_SFT_CASES names the file of cases, which make compat writes.
func TestEncodeAsTRL(t *testing.T) {
	file := os.Getenv("RLTRAIN_SFT_CASES")
	if file == "" {
		t.Skip("RLTRAIN_SFT_CASES is not set")
	}
	data := must.Get(os.ReadFile(file))(t)
	for line := range strings.Lines(string(data)) {
		c := must.Into[trlCase](t, json.Unmarshal, []byte(line))
		t.Run(c.Name, func(t *testing.T) { checkAsTRL(t, c) })
	}
}

func checkAsTRL(t *testing.T, c trlCase) {
	p := must.Open(policy.NewCausalLM(policy.Config{Dir: c.Model}))(t)
	parts := must.Get(dataset.Find("", c.Data))(t)
	divided := must.Get((dataset.Reader{}).Divide(parts))(t)
	records := divided.Train
	if c.Validation {
		records = divided.Validation
	}
	examples := chat.Examples(records, chat.LanguageModelling, chat.PromptCompletion)
	encoded := must.Get(p.Encode(examples, policy.EncodeOptions{MaxLength: c.MaxLength, CompletionOnly: c.Completion, AssistantOnly: c.Assistant}))(t)
	var ids, labels [][]int32
	for _, q := range encoded.Sequences {
		trained := make([]int32, len(q.IDs))
		for i, id := range q.IDs {
			trained[i] = -100
			if q.Labels[i] {
				trained[i] = id
			}
		}
		ids, labels = append(ids, q.IDs), append(labels, trained)
	}
	diff := cmp.Diff(c.IDs, ids)
	expect.Require(t, diff == "", "ids (-TRL +ours): %s", diff)
	for i := range c.Labels {
		c.Labels[i][0] = -100 // TRL labels the first token, which nothing predicts
	}
	diff = cmp.Diff(c.Labels, labels)
	expect.Require(t, diff == "", "labels (-TRL +ours): %s", diff)
	got := lossOf(t, p, encoded.Sequences)
	expect.True(t, math.Abs(got-c.Loss) <= 1e-5*c.Loss, "loss %.7f, TRL's is %.7f", got, c.Loss)
}

// lossOf is the mean of -log p over all labels.
func lossOf(t *testing.T, p *policy.CausalLM, sequences []policy.Sequence) float64 {
	t.Helper()
	var batch rl.Batch
	begin := 0
	for _, q := range sequences {
		batch.Sequences = append(batch.Sequences, q.IDs)
		for i, label := range q.Labels {
			if label {
				batch.Rows, batch.Actions = append(batch.Rows, int64(begin+i-1)), append(batch.Actions, int64(q.IDs[i]))
			}
		}
		begin += len(q.IDs)
	}
	loss := 0.0
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		for _, x := range s.Read(p.Forward(s, &batch, policy.Pass{Temperature: 1}).LogProbs) {
			loss -= float64(x) / float64(len(batch.Rows))
		}
	})
	return loss
}
