package policy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/hub"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
)

// conversational is a policy with a chat template.
func conversational(t *testing.T, text string) *CausalLM {
	t.Helper()
	p := tinyPolicy(t, Config{})
	p.Templates = must.Get(template.Parse("test", text))(t)
	return p
}

// readConversation reads a row of JSON with a prompt.
func readConversation(t *testing.T, row string) chat.Example {
	t.Helper()
	value := must.Get(dataset.Parse(row))(t)
	r := dataset.Record{File: "f", Line: 1, Fields: value.(dataset.Object)}
	layout := must.Get(chat.Detect(r, chat.PromptOnly))(t)
	return must.Get(layout.Example(r))(t)
}

// TestPromptsAsTemplatesSeeThem renders rows of every kind for generation, and as an episode shows them.
func TestPromptsAsTemplatesSeeThem(t *testing.T) {
	const said = "{% for m in messages %}{{ m.role }}={{ m.content or '' }}{% for c in m.tool_calls or [] %}CALL{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
	const joined = "{% for m in messages %}{{ m.role + '=' + m.content + ';' }}{% endfor %}"
	const joinedCalls = "{% for m in messages %}{{ m.role + '=' + m.content }}{% for c in m.tool_calls or [] %}{{ 'CALL' + c.function.arguments }}{% endfor %};{% endfor %}"
	const noResults = "{% for m in messages if m.role != 'tool' %}{{ m.role }}={{ m.content or '' }}{% for c in m.tool_calls or [] %}CALL{% endfor %};{% endfor %}"
	const listed = "{% for m in messages %}{{ m.role }}={% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %};{% endfor %}"
	const first = "{% for m in messages %}{{ m.role }}={% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %};{% endfor %}"
	const ask = `"messages":[{"role":"user","content":"hi"}]`
	const parts = `"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]`
	for name, c := range map[string]struct{ template, row, want, wantErr string }{
		"clock":                            {template: "{{ strftime_now('%d %b %Y') }}", row: "{" + ask + "}", want: "03 Feb 2026"},
		"date_string":                      {template: "{% if date_string is not defined %}{% set date_string = strftime_now('%F') %}{% endif %}{{ date_string }}", row: "{" + ask + `,"chat_template_kwargs":{"date_string":"today"}}`, want: "today"},
		"tools":                            {template: "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}", row: "{" + ask + `,"tools":[{"name":"f","p":{"default":null,"n":12345678901234567890123}}]}`, want: `{"name": "f", "p": {"default": null, "n": 12345678901234567890123}}`},
		"tools that are texts":             {template: joined, row: "{" + ask + `,"tools":["f"]}`, wantErr: "tool 1 is a string, want an object"},
		"documents":                        {template: "{% for d in documents or [] %}{{ d.title }}{% endfor %}", row: "{" + ask + `,"documents":[{"title":"a"},{"title":"b"}]}`, want: "ab"},
		"arguments of all conversations":   {template: "{{ think }}{{ depth }}", row: "{" + ask + `,"chat_template_kwargs":{"depth":2}}`, want: "False2"},
		"calls":                            {template: said, row: `{"prompt":[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":null}}}]},{"role":"tool","content":"4"}]}`, want: `assistant=CALL{"a": null};tool=4;`},
		"calls in OpenAI's shape":          {template: said, row: `{"prompt":[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","content":"4"}]}`, want: `assistant=CALL{"a": 1};tool=4;`},
		"calls of a template for strings":  {template: joinedCalls, row: `{"prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool","content":"4"}]}`, want: `user=q;assistant=CALL{"a":1};tool=4;`},
		"calls of a template that drops":   {template: joined, row: `{"prompt":[{"role":"assistant","content":"","tool_calls":[{"name":"f"}]},{"role":"user","content":"q"}]}`, wantErr: "the chat template drops tool_calls"},
		"results of one that drops them":   {template: noResults, row: `{"prompt":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"name":"f"}]},{"role":"tool","content":"4"}]}`, wantErr: "message 3: the chat template drops messages of the role tool"},
		"parts of a template for texts":    {template: joined, row: "{" + parts + "}", want: "user=one\ntwo;"},
		"parts of a template that prints":  {template: said, row: "{" + parts + "}", want: "user=one\ntwo;"},
		"parts of a template that reads":   {template: listed, row: "{" + parts + "}", want: "user=onetwo;"},
		"parts of a template that forgets": {template: first, row: "{" + parts + "}", wantErr: "message 1: the chat template drops a part"},
	} {
		p := conversational(t, c.template)
		p.Template = TemplateSettings{Now: time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC), Args: dataset.Object{{Name: "think", Value: false}, {Name: "depth", Value: int64(1)}}}
		e := readConversation(t, c.row)
		prompt, err := p.EncodePrompt(e)
		shown, other := p.EncodeObservation(envs.Observation{Messages: chat.Said(e.Prompt.Messages), TemplateInputs: e.TemplateInputs})
		if c.wantErr != "" {
			expect.True(t, err != nil && strings.Contains(err.Error(), c.wantErr) && other != nil, "%s: %v, %v; want %q", name, err, other, c.wantErr)
			continue
		}
		if err != nil || other != nil {
			t.Errorf("%s: %v, %v", name, err, other)
			continue
		}
		want := must.Get(p.Tokenizer.EncodeRaw(c.want, false))(t)
		got, _ := p.Tokenizer.Decode(prompt, false)
		expect.True(t, slices.Equal(prompt, want), "%s: %q, want %q", name, got, c.want)
		expect.True(t, slices.Equal(shown, prompt), "%s: an episode shows other tokens than a file", name)
	}
}

// A template may open the assistant's turn with a thought that turns of the past do not have.
func TestOpenedThought(t *testing.T) {
	const opening = "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}{% if add_generation_prompt %}assistant:<think>{% endif %}"
	const other = "{% for m in messages %}{{ m.role + ':' + m.content + (loop.length | string) }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
	pair := chat.Example{File: "f", Line: 7, Format: chat.Preference, Prompt: conversationOf("user", "q").Text, Chosen: conversationOf("assistant", "good").Text, Rejected: conversationOf("assistant", "bad").Text}
	p := conversational(t, opening)
	got, err := p.EncodePreferences(examplesOf(pair), EncodeOptions{}, false)
	expect.Require(t, err == nil && got.Shortened == 1 && len(got.Units) == 1, "%+v, %v", got, err)
	for i, want := range []string{"good", "bad"} {
		var actions []int32
		for _, a := range got.Units[0][i].Actions {
			actions = append(actions, int32(a))
		}
		text, err := p.Tokenizer.Decode(actions, false)
		expect.True(t, err == nil && text == want, "%q is compared, want %q; %v", text, want, err)
	}
	_, err = conversational(t, other).EncodePreferences(examplesOf(pair), EncodeOptions{}, false)
	expect.True(t, err != nil && strings.HasPrefix(err.Error(), "f:7: ") && !strings.Contains(err.Error(), "\n"), "a template that renders the prompt in another way: %v", err)
}

// TestFaultsOfConversations: what a template or a message cannot do is an error of its row, with the message's number.
func TestFaultsOfConversations(t *testing.T) {
	pair := conversationOf("user", "q", "assistant", "a")
	pair.Format, pair.Prompt.Messages, pair.Completion.Messages, pair.Text.Messages = chat.PromptCompletion, pair.Text.Messages[:1], pair.Text.Messages[1:], nil
	odd := conversationOf("user", "q", "assistant", "a")
	odd.Text.Messages[1][1].Value = []byte("a")
	unread := conversationOf("user", "q", "assistant", "a")
	unread.Tools = []any{dataset.Object{}, dataset.Object{{Name: "x", Value: []byte("a")}}}
	const plain = "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}"
	for want, c := range map[string]struct {
		template string
		example  chat.Example
		options  EncodeOptions
	}{
		"no prompt":     {"{% if add_generation_prompt %}{{ raise_exception('no prompt') }}{% endif %}" + plain, pair, EncodeOptions{}},
		"no completion": {"{% if messages | length > 1 %}{{ raise_exception('no completion') }}{% endif %}" + plain, pair, EncodeOptions{}},
		"no messages":   {"{{ raise_exception('no messages') }}", conversationOf("user", "q", "assistant", "a"), EncodeOptions{AssistantOnly: true}},
		"message 2":     {plain, odd, EncodeOptions{}},
		"tool 2":        {plain, unread, EncodeOptions{}},
	} {
		expect.Failure(conversational(t, c.template).Encode(examplesOf(c.example), c.options))(t, "f:3: … "+want)
	}
	opened := "{% for m in messages %}{{ '<' if m.role == 'assistant' }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
	must.Get(conversational(t, opened).Encode(examplesOf(pair), EncodeOptions{CompletionOnly: true}))(t) // the prompt's messages end the border
}

// TestUnwritableEnds: a saved model that does not say where texts end is an error.
func TestUnwritableEnds(t *testing.T) {
	p := tinyPolicy(t, Config{})
	p.added = []int32{3}
	expect.Error(t, p.saveText(must.Folder(t, map[string]string{"generation_config.json": "{"})), "generation_config.json")
}

// TestEnds: a model stops at the token with which its template ends a turn, and says so in what it saves.
func TestEnds(t *testing.T) {
	const turns = "{% for m in messages %}{{ m.role + ':' + m.content + '<unk>\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, TinyModel(dir, 1, 32, 3))
	for _, c := range []struct {
		template, token string
		eos, added      []int32
		saved           string // eos_token of tokenizer_config.json
	}{
		{"", "", []int32{1}, nil, "<eos>"},
		{strings.Replace(turns, "<unk>", "", 1), "", []int32{1}, nil, "<eos>"},
		{strings.Replace(turns, "<unk>", "<eos>", 1), "", []int32{1}, nil, "<eos>"},
		{turns, "", []int32{1, 2}, []int32{2}, "<eos>"},
		{turns, "<unk>", []int32{2, 1}, []int32{2}, "<unk>"},
		{"", "<pad>", []int32{0, 1}, []int32{0}, "<pad>"},
		{turns, "<none>", nil, nil, ""},
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(c.template), 0o644))
		p, err := NewCausalLM(Config{Dir: dir, Full: true})
		must.Do(t, err)
		if c.token != "" {
			err = p.EndAt(c.token)
		}
		if c.eos == nil {
			expect.Error(t, err, c.token)
			p.Close()
			continue
		}
		out := t.TempDir()
		must.Do(t, p.Save(out))
		expect.True(t, slices.Equal(p.EOS(), c.eos) && slices.Equal(p.AddedEOS(), c.added),
			"%q with %q: ends at %v, added %v; want %v, %v", c.template, c.token, p.EOS(), p.AddedEOS(), c.eos, c.added)
		p.Close()
		again := must.Get(ReadCausalLM(out))(t)
		expect.True(t, slices.Equal(again.EOS(), c.eos) && again.AddedEOS() == nil, "%q with %q: saved, it ends at %v, added %v", c.template, c.token, again.EOS(), again.AddedEOS())
		again.Close()
		var saved struct {
			EOS string `json:"eos_token"`
		}
		if data, err := os.ReadFile(filepath.Join(out, "tokenizer_config.json")); err != nil || json.Unmarshal(data, &saved) != nil || saved.EOS != c.saved {
			t.Errorf("%q with %q: tokenizer_config.json has the end %q, want %q; %v", c.template, c.token, saved.EOS, c.saved, err)
		}
	}
}

// The ends that a run chose are those of its adapter, too.
func TestEndsOfAnAdapter(t *testing.T) {
	p := tinyPolicy(t, Config{R: 2, Alpha: 4})
	must.Do(t, p.EndAt("<unk>"))
	dir := t.TempDir()
	must.Do(t, p.Save(dir))
	again := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", false))(t)
	expect.True(t, slices.Equal(again.EOS(), []int32{2, 1}) && again.Tokenizer.Special()["eos_token"] == "<unk>",
		"it ends at %v, named %s", again.EOS(), again.Tokenizer.Special()["eos_token"])
}

// An adapter's ends and template are read whether it can be shared or only merged, and a merged model keeps them.
func TestTextOfAdapters(t *testing.T) {
	for name, base := range adapterCases {
		dir := changeAdapter(t, name, map[string]any{"base_model_name_or_path": adapterBase(t, base)})
		must.Do(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": [1, 2, 3]}`), 0o600))
		must.Do(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{{ messages[0].content }}mine"), 0o600))
		p := must.Get(LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", false))(t)
		whole := filepath.Join(t.TempDir(), "whole")
		must.Do(t, p.SaveFull(whole, ""))
		merged := must.Get(ReadCausalLM(whole))(t)
		for what, q := range map[string]*CausalLM{"loaded": p, "merged": merged} {
			expect.True(t, slices.Equal(q.EOS(), []int32{1, 2, 3}) && q.Templates != nil && strings.Contains(q.Templates.Source(), "mine"),
				"%s, %s: it ends at %v, or has no template of its own", name, what, q.EOS())
		}
		merged.Close()
		p.Close()
		must.Write(t, filepath.Join(dir, "adapter_config.json"), "{")
		expect.Failure(LoadText(t.Context(), &hub.Client{}, dir))(t, "adapter_config.json")
	}
}

// A chat template that a run chose goes with its adapter, with the token that ends its turns, and into GGUF files.
func TestTemplateOfAnAdapter(t *testing.T) {
	const text = "{% for m in messages %}{{ m.role }}={{ m.content }}<unk>{% endfor %}"
	file := must.File(t, "own.jinja", text)
	p := tinyPolicy(t, Config{R: 2, Alpha: 4})
	expect.Error(t, p.SetTemplate(file+".none"), file+".none")
	expect.Error(t, p.SetTemplate(t.TempDir()), "no chat template")
	must.Do(t, p.SetTemplate(file))
	must.Do(t, p.EndAt("<pad>"))
	adapter, whole := t.TempDir(), filepath.Join(t.TempDir(), "whole")
	must.Do(t, os.Mkdir(filepath.Join(adapter, "additional_chat_templates"), 0o700))
	must.Do(t, os.WriteFile(filepath.Join(adapter, "additional_chat_templates", "tool_use.jinja"), []byte("old"), 0o600))
	must.Do(t, p.Save(adapter))
	_, err := os.Stat(filepath.Join(adapter, "additional_chat_templates"))
	expect.True(t, err != nil, "the folder still has another template for tools")
	must.Do(t, p.SaveFull(whole, ""))
	want := []gguf.Pair{{Key: "tokenizer.chat_template", Value: text}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(0)}}
	expect.Equal(t, want, p.ggufText(), "metadata of a GGUF file")
	base := tinyPolicy(t, Config{})
	beside := must.Open(base.WithAdapter(adapter))(t)
	policies := map[string]*CausalLM{"set": p, "beside its base": beside}
	for name, from := range map[string]string{"adapter": adapter, "whole": whole} {
		policies[name] = must.Get(LoadCausalLM(t.Context(), &hub.Client{}, from, "", "", false))(t)
		defer policies[name].Close()
	}
	for name, q := range policies {
		ids, err := q.EncodePrompt(chat.Example{Prompt: conversationOf("user", "hi").Text})
		got, wrong := q.Tokenizer.Decode(ids, false)
		expect.True(t, err == nil && wrong == nil && got == "user=hi<unk>", "%s: a prompt is %q, %v, %v", name, got, err, wrong)
		unknown, _ := q.Tokenizer.TokenID("<unk>")
		expect.True(t, slices.Contains(q.EOS(), unknown), "%s: it ends at %v, without %d, which ends a turn", name, q.EOS(), unknown)
		expect.True(t, name == "beside its base" || q.Tokenizer.Special()["eos_token"] == "<pad>", "%s: its end is %s", name, q.Tokenizer.Special()["eos_token"])
	}
	expect.True(t, (base.Templates == nil || !strings.Contains(base.Templates.Source(), "={{")) && !slices.Contains(base.EOS(), 2), "the base model has changed")
}

// Examples that teach to say nothing are counted.
func TestEmptyResponses(t *testing.T) {
	p := conversational(t, "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}<eos>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
	conversation := func(pairs ...string) chat.Example { return conversationOf(pairs...) }
	got, err := p.Encode(examplesOf(conversation("user", "q", "assistant", "a"), conversation("user", "q", "assistant", " ")), EncodeOptions{AssistantOnly: true})
	expect.True(t, err == nil && got.Empty == 1 && len(got.Sequences) == 2 && got.Masked == 2, "%d empty of %d, %d masked, %v", got.Empty, len(got.Sequences), got.Masked, err)
	got, err = p.Encode(examplesOf(completionOf("a", "b"), completionOf("a", "")), EncodeOptions{})
	expect.True(t, err == nil && got.Empty == 1, "%d empty, %v", got.Empty, err)
	expect.Failure(p.Encode(examplesOf(conversation("user", "q"), conversation("user", "r")), EncodeOptions{AssistantOnly: true}))(t, "2 rows cannot be used", "no message is the assistant's")
}
