package policy

import (
	"os"
	"slices"
	"strings"
	"testing"

	"rltrain/envs"
	"rltrain/torch/torchtest"
)

func TestObservationsBecomeTokens(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := t.TempDir() + "/tiny"
	if err := TinyModel(dir, 1, 32, 3); err != nil {
		t.Fatal(err)
	}
	load := func() *Token {
		p, err := NewToken(TokenConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	user, opened := envs.Message{Role: envs.RoleUser, Content: "two"}, envs.Message{Role: envs.RoleAssistant, Content: "so: "}
	if _, err := load().Observe(envs.Observation{Messages: []envs.Message{user}}); err == nil || !strings.Contains(err.Error(), "chat template") {
		t.Errorf("error %v", err)
	}
	const template = "{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
	if err := os.WriteFile(dir+"/chat_template.jinja", []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	p := load()
	for _, test := range []struct {
		shown envs.Observation
		want  string
	}{
		{envs.Observation{Text: "as it is"}, "as it is"},
		{envs.Observation{Messages: []envs.Message{user}}, "user:two assistant:"},
		{envs.Observation{Messages: []envs.Message{user, opened}}, "user:two assistant:so: "},
	} {
		ids, err := p.Observe(test.shown)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Tokenizer.Decode(ids, false); err != nil || got != test.want {
			t.Errorf("%q, %v; want %q", got, err, test.want)
		}
	}
}

// TestSpell tells how long the text is after each token.
func TestSpell(t *testing.T) {
	p := tinyPolicy(t, TokenConfig{})
	ids, err := p.Tokenizer.EncodeRaw("a+b=", false)
	if err != nil {
		t.Fatal(err)
	}
	text, ends, err := p.Spell(append(ids, p.EOS()[0]))
	if err != nil || text != "a+b=" || !slices.Equal(ends, []int{1, 2, 3, 4, 4}) {
		t.Errorf("%q, %v, %v; want the text, and no more of it for the end token", text, ends, err)
	}
}
