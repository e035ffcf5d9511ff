package policy_test

import (
	"fmt"
	"iter"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
)

// BenchmarkEncode encodes rows of a data set.
func BenchmarkEncode(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "tiny")
	must.Do(b, policy.TinyChatModel(dir, 1, 32, 7))
	p := must.Get(policy.NewCausalLM(policy.Config{Dir: dir}))(b)
	defer p.Close()
	rows := func(n int, row func(i int) chat.Example) iter.Seq2[chat.Example, error] {
		return func(yield func(chat.Example, error) bool) {
			for i := range n {
				if !yield(row(i), nil) {
					return
				}
			}
		}
	}
	const text = "the law of force is that a body at rest stays at rest unless a force acts on it"
	say := func(role string, i int) chat.Message {
		return chat.Message{{Name: "role", Value: role}, {Name: "content", Value: fmt.Sprint(text, i)}}
	}
	for name, row := range map[string]func(i int) chat.Example{
		"text": func(i int) chat.Example { return chat.Example{Text: chat.Content{Text: fmt.Sprint(text, i)}} },
		"messages": func(i int) chat.Example {
			return chat.Example{Text: chat.Content{Messages: []chat.Message{say("user", i), say("assistant", i)}}}
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must.Get(p.Encode(rows(1000, row), policy.EncodeOptions{}))(b)
			}
		})
	}
}
