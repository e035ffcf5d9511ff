package serve

import (
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/policy"
)

// thinking splits the thoughts of a request's choices from their content.
type thinking struct {
	opened  bool // the prompt ends with the tag that begins a thought
	readers map[int]*envs.ThoughtReader
}

// thinkingOf is how a model thinks after a prompt; nil if its chat template knows no thoughts. The text of the tags is kept.
func thinkingOf(p *policy.CausalLM, prompt []int32, q *sampling) *thinking {
	source := p.Templates.Source()
	for _, tags := range envs.ThoughtTags {
		if !strings.Contains(source, tags[1]) {
			continue
		}
		if q.Special == nil && p.Tokenizer.IsControl(tags[1]) {
			keep := false
			q.Special = &keep
		}
		return &thinking{opened: p.OpensThought(prompt), readers: map[int]*envs.ThoughtReader{}}
	}
	return nil
}

// split returns a part without its thought, which m gets.
func (k *thinking) split(p *part, m *chatMessage) *part {
	r := k.readers[p.index]
	if r == nil {
		r = envs.NewThoughtReader(k.opened)
		k.readers[p.index] = r
	}
	q := *p
	m.Reasoning, q.text = r.Add(p.text, p.done != nil)
	return &q
}
