package policy_test

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

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
		var c trlCase
		must.Do(t, json.Unmarshal([]byte(line), &c))
		t.Run(c.Name, func(t *testing.T) { checkAsTRL(t, c) })
	}
}

func checkAsTRL(t *testing.T, c trlCase) {
	p := must.Get(policy.NewCausalLM(policy.Config{Dir: c.Model}))(t)
	defer p.Close()
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
