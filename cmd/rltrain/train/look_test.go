package train

import (
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/rl/policy"
)

// What is trained on stands between marks.
func TestMarked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := policy.TinyModel(dir, 1, 32, 1); err != nil {
		t.Fatal(err)
	}
	p, err := policy.ReadCausalLM(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ids, err := p.Tokenizer.EncodeRaw("abcde", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		labels []bool
		want   string
	}{
		{[]bool{false, true, true, false, true}, "a<bc>d<e>"},
		{[]bool{false, false, false, false, false}, "abcde"},
		{[]bool{false, true, true, true, true}, "a<bcde>"},
	} {
		if got, err := marked(p, policy.Sequence{IDs: ids, Labels: c.labels}, "<", ">"); err != nil || got != c.want {
			t.Errorf("%q, %v; want %q", got, err, c.want)
		}
	}
}
