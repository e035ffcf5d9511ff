package train

import (
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
)

// What is trained on stands between marks.
func TestMarked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 1, 32, 1))
	p := must.Get(policy.ReadCausalLM(dir))(t)
	defer p.Close()
	ids := must.Get(p.Tokenizer.EncodeRaw("abcde", false))(t)
	for _, c := range []struct {
		labels []bool
		want   string
	}{
		{[]bool{false, true, true, false, true}, "a<bc>d<e>"},
		{[]bool{false, false, false, false, false}, "abcde"},
		{[]bool{false, true, true, true, true}, "a<bcde>"},
	} {
		expect.Result(marked(p, policy.Sequence{IDs: ids, Labels: c.labels}, "<", ">"))(t, c.want, "marked")
	}
}
