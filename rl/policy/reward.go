package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/words"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
)

// RewardModel gives a prompt with an answer a number r(x, y): the one output of a reward model as it is, or the
// probability of one of a classifier's labels. It stands on an encoder, whose pooled vector a linear layer reads, or on
// a language model, of which it reads the state of the last token.
type RewardModel struct {
	encoder *Classifier  // nil on a language model
	causal  *causalScore // nil on an encoder
	class   int          // of several labels; -1 for the one output
	name    string
}

// RewardConfig says how a new reward model is made.
type RewardConfig struct {
	Dir       string // model folder
	BaseModel string // what saved files call it; "" = Dir
	Revision  string
	DType     string // of a language model's frozen weights; "" = as transformers.CausalOptions has it
	Pooling   string // of an encoder; "" = as the folder says
	MaxLength int    // 0 = as many as the model has positions
	R         int
	Alpha     float64
	Targets   []string
	Seed      uint64
}

// NewRewardModel makes a reward model on a pretrained encoder or language model: adapters that change nothing yet, and a
// score layer; that of a language model is drawn from N(0, 1/(H+1)) (Stiennon et al. 2020).
func NewRewardModel(c RewardConfig) (*RewardModel, error) {
	if !isLanguageModel(c.Dir) {
		p, err := NewLabel(LabelConfig{
			Dir: c.Dir, BaseModel: c.BaseModel, Revision: c.Revision, Labels: []string{rewardLabel}, Pooling: c.Pooling, MaxLength: c.MaxLength,
			R: c.R, Alpha: c.Alpha, Targets: c.Targets, Seed: c.Seed,
		})
		return &RewardModel{encoder: p, class: -1, name: c.Dir}, err
	}
	if c.Pooling != "" {
		return nil, fmt.Errorf("pooling %s is for encoders: of a language model the last token is read", c.Pooling)
	}
	p, err := newCausalScore(c)
	return &RewardModel{causal: p, class: -1, name: c.Dir}, err
}

// LoadRewardModel loads a folder or a name on the hub: what NewRewardModel's Save wrote, a trained classifier, or the
// folder of a sequence classifier of transformers on an encoder. name#LABEL chooses one of several labels. It is not trained
// further.
func LoadRewardModel(ctx context.Context, client *hub.Client, name string) (*RewardModel, error) {
	label := ""
	if at := strings.LastIndexByte(name, '#'); at >= 0 {
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			name, label = name[:at], name[at+1:]
		}
	}
	found, err := client.Model(ctx, name, hub.Weights)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(found.Dir, lora.ConfigFile)); err == nil && !IsLabelFolder(found.Dir) {
		p, err := loadCausalScore(ctx, client, found.Dir)
		if err == nil && label != "" && label != rewardLabel {
			p.Close()
			err = fmt.Errorf("%s has one output, %q, and no label %q", name, rewardLabel, label)
		}
		return &RewardModel{causal: p, class: -1, name: name}, err
	}
	p, err := loadClassifier(ctx, client, found.Dir)
	if err != nil {
		return nil, err
	}
	m := &RewardModel{encoder: p, class: -1, name: name}
	switch several := !p.IsReward(); {
	case several && label == "":
		err = fmt.Errorf("%s has %d labels, %s, and no single score: name the one whose probability counts, as %s#%s",
			name, len(p.Labels), words.List(p.Labels), name, p.Labels[len(p.Labels)-1])
	case several:
		if m.class = slices.Index(p.Labels, label); m.class < 0 {
			err = fmt.Errorf("%s has no label %q, only %s", name, label, words.List(p.Labels))
		}
	case label != "" && label != p.Labels[0]:
		err = fmt.Errorf("%s has one output, %q, and no label %q", name, p.Labels[0], label)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return m, nil
}

// IsRewardFolder tells the folder that Save of a RewardModel wrote from others.
func IsRewardFolder(dir string) bool {
	if IsLabelFolder(dir) {
		p, err := ReadLabelFolder(dir)
		return err == nil && p.IsReward()
	}
	_, err := os.Stat(filepath.Join(dir, scoreFile))
	return err == nil
}

// loadClassifier loads the folder of a Label, or of a classifier of transformers, whose labels are those of config.json.
func loadClassifier(ctx context.Context, client *hub.Client, dir string) (*Classifier, error) {
	if IsLabelFolder(dir) {
		p, err := ReadLabelFolder(dir)
		if err != nil {
			return nil, err
		}
		p.adapter.frozen = true
		return p, p.loaded(ctx, client, dir)
	}
	config, err := transformers.LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	p := &Classifier{Labels: config.ID2Label, Pooling: transformers.PoolFamily, MaxLength: config.MaxLength(), dir: dir, adapter: adapter{frozen: true}}
	for i := len(p.Labels); i < config.NumLabels; i++ {
		p.Labels = append(p.Labels, fmt.Sprintf("LABEL_%d", i))
	}
	return p, p.loaded(ctx, client, dir)
}

// Close frees the model.
func (m *RewardModel) Close() {
	if m.causal != nil {
		m.causal.Close()
		return
	}
	m.encoder.Close()
}

// MaxLength is how many tokens the model reads.
func (m *RewardModel) MaxLength() int {
	if m.causal != nil {
		return m.causal.limit()
	}
	return m.encoder.MaxLength
}

// Encode is the tokens of a prompt with an answer. A language model reads them as it would be trained on them, with its
// chat template and the token that ends a text; an encoder what RewardText writes. More than MaxLength are an error: cut,
// the answer would be judged for something else.
func (m *RewardModel) Encode(prompt, answer chat.Content) (ids []int32, err error) {
	long := false
	if m.causal != nil {
		if ids, err = m.causal.encode(prompt, answer); err != nil {
			return nil, err
		}
		long = len(ids) > m.MaxLength()
	} else if ids, long, err = m.encoder.EncodeText(RewardText(prompt, answer)); err != nil {
		return nil, err
	}
	if long {
		return nil, fmt.Errorf("prompt and answer are %w than the %d tokens that the reward model reads", errLonger, m.MaxLength())
	}
	return ids, nil
}

var errLonger = errors.New("longer")

// RewardText is what an encoder reads of a prompt with an answer: the prompt, of a conversation each message behind its
// role, an empty line, and the answer.
func RewardText(prompt, answer chat.Content) string {
	var parts []string
	for _, c := range []chat.Content{prompt, answer} {
		if text := strings.TrimSpace(c.Text); text != "" {
			parts = append(parts, text)
		}
		for _, message := range c.Messages {
			parts = append(parts, message.Role()+": "+strings.TrimSpace(message.Text()))
		}
	}
	return strings.Join(parts, "\n\n")
}

// Judged is the prompt and the answer of a finished completion.
func Judged(c envs.Completion) (prompt, answer chat.Content) {
	if c.Observation.Messages == nil {
		return chat.Content{Text: c.Observation.Text}, chat.Content{Text: c.Text}
	}
	messages, text := c.Observation.Messages, c.Text
	if last := len(messages) - 1; messages[last].Role == envs.RoleAssistant { // the answer goes on from it
		messages, text = messages[:last], messages[last].Content+text
	}
	return chat.Content{Messages: Conversation(messages)}, chat.Content{Messages: Conversation([]envs.Message{{Role: envs.RoleAssistant, Content: text}})}
}

// scores are r of S sequences, [S].
func (m *RewardModel) scores(s *torch.Scope, sequences [][]int32, checkpoint bool) torch.Tensor {
	if m.causal != nil {
		return m.causal.scores(s, sequences, checkpoint)
	}
	_, logits := m.encoder.read(s, sequences, torch.Pass{Adapter: true})
	if m.class < 0 {
		return s.Squeeze(logits)
	}
	classes := make([]int64, len(sequences))
	for i := range classes {
		classes[i] = int64(m.class)
	}
	return s.Exp(s.Pick(s.LogSoftmax(logits), s.Ints(classes, int64(len(classes)))))
}

// Scores are the rewards of sequences that Encode made, in order. It stops early with ctx's error.
func (m *RewardModel) Scores(ctx context.Context, sequences [][]int32) ([]float64, error) {
	all := make([]float64, 0, len(sequences))
	for _, part := range rl.MicroBatches(len(sequences), predictTokens, func(i int) int { return len(sequences[i]) }) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if part[0] == part[1] {
			break
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			for _, score := range s.Read(m.scores(s, sequences[part[0]:part[1]], false)) {
				if math.IsNaN(float64(score)) || math.IsInf(float64(score), 0) {
					return fmt.Errorf("a score is %v", score)
				}
				all = append(all, float64(score))
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("scoring with %s: %w", filepath.Base(m.name), err)
		}
	}
	return all, nil
}
