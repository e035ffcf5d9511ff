package policy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

func TestObservationsBecomeTokens(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := t.TempDir() + "/tiny"
	must.Do(t, TinyModel(dir, 1, 32, 3))
	load := func() *CausalLM {
		p := must.Get(NewCausalLM(Config{Dir: dir}))(t)
		t.Cleanup(p.Close)
		return p
	}
	user, opened := envs.Message{Role: envs.RoleUser, Content: "two"}, envs.Message{Role: envs.RoleAssistant, Content: "so: "}
	expect.Failure(load().EncodeObservation(envs.Observation{Messages: []envs.Message{user}}))(t, "chat template")
	const template = "{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
	must.Do(t, os.WriteFile(dir+"/chat_template.jinja", []byte(template), 0o644))
	p := load()
	for _, test := range []struct {
		shown envs.Observation
		want  string
	}{
		{envs.Observation{Text: "as it is"}, "as it is"},
		{envs.Observation{Messages: []envs.Message{user}}, "user:two assistant:"},
		{envs.Observation{Messages: []envs.Message{user, opened}}, "user:two assistant:so: "},
	} {
		ids := must.Get(p.EncodeObservation(test.shown))(t)
		expect.Result(p.Tokenizer.Decode(ids, false))(t, test.want, "Decode")
	}
}

// TestSpell reports the length of the text after each token.
func TestSpell(t *testing.T) {
	p := tinyPolicy(t, Config{})
	ids := must.Get(p.Tokenizer.EncodeRaw("a+b=", false))(t)
	text, ends, err := p.DecodeEnds(append(ids, p.EOS()[0]))
	expect.True(t, err == nil && text == "a+b=" && slices.Equal(ends, []int{1, 2, 3, 4, 4}),
		"%q, %v, %v; want the text, and no more of it for the end token", text, ends, err)
	// Bytes of a character have no text until it is complete; at the end they are no character.
	p.Tokenizer = must.Get(tokenizer.Load(filepath.Join("..", "..", "torch", "transformers", "tokenizer", "testdata", "bytes")))(t)
	ids, err = p.Tokenizer.EncodeRaw("日+日", false)
	expect.Require(t, err == nil && len(ids) == 7, "%v, %v", ids, err)
	text, ends, err = p.DecodeEnds(ids[:6])
	if err != nil || !strings.HasPrefix(text, "日+\ufffd") || len(ends) != 6 || !slices.Equal(ends[:5], []int{0, 0, 3, 4, 4}) {
		t.Errorf("%q, %v, %v", text, ends, err)
	}
}

// TestReply gives the same tokens as encoding the full conversation.
func TestReply(t *testing.T) {
	dir := t.TempDir() + "/tiny"
	must.Do(t, TinyChatModel(dir, 1, 32, 3))
	p := must.Get(NewCausalLM(Config{Dir: dir}))(t)
	defer p.Close()
	said := []envs.Message{{Role: envs.RoleUser, Content: "a"}, {Role: envs.RoleAssistant, Content: "b"}, {Role: envs.RoleUser, Content: "c"}}
	want := must.Get(p.EncodeObservation(envs.Observation{Messages: said}))(t)
	for _, ended := range []bool{true, false} {
		ids := must.Get(p.EncodeObservation(envs.Observation{Messages: said[:1]}))(t)
		written := must.Get(p.Tokenizer.EncodeRaw("b", false))(t)
		ids = append(ids, written...)
		if ended {
			ids = append(ids, p.EOS()[0])
		}
		reply, err := p.EncodeReply(envs.TemplateInputs{}, "c", ended)
		expect.True(t, err == nil && slices.Equal(append(ids, reply...), want),
			"ended %t: %v and %v, %v; want %v", ended, ids, reply, err, want)
	}
	expect.Failure(tinyPolicy(t, Config{}).EncodeReply(envs.TemplateInputs{}, "c", true))(t, "chat template")
}
