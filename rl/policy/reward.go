package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/words"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
)

// RewardModel gives a prompt with a completion a number r(x, y): the one output of a classifier with one label as it is, or
// the probability of one of several labels. Its samples have one action each, which nothing reads.
type RewardModel struct {
	*Classifier
	class int // of several labels; -1 for the one output
	name  string
}

// NewRewardModel makes a reward model on a pretrained encoder or language model: an adapter that changes nothing yet, and a
// randomly initialised score layer.
func NewRewardModel(c Config) (*RewardModel, error) {
	if c.R == 0 && isLanguageModel(c.Dir) {
		return nil, errors.New("a reward model on a language model needs an adapter: set the rank above 0")
	}
	c.Labels = []string{rewardLabel}
	p, err := NewClassifier(c)
	if err != nil {
		return nil, err
	}
	return &RewardModel{p, -1, c.Dir}, nil
}

// LoadRewardModel loads a folder or a name on the hub: what NewRewardModel's Save wrote, a trained classifier, or the
// folder of a sequence classifier of transformers on an encoder. name#LABEL chooses one of several labels. The model is
// frozen.
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
	p, err := readRewardModel(found.Dir)
	if err != nil {
		return nil, err
	}
	if err := p.load(ctx, client, found.Dir, "", true); err != nil {
		return nil, err
	}
	m := &RewardModel{p, -1, name}
	switch several := !p.IsReward(); {
	case p.Pooling == PoolStep && label == "" && len(p.Labels) == 2:
		m.class = 1 // that a step is right
	case several && label == "":
		err = fmt.Errorf("%s has %d labels, %s, and no single score; name the label whose probability is the score, as in %s#%s",
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

// readRewardModel reads what the folder of a reward model or classifier, ours or of transformers, says of it.
func readRewardModel(dir string) (*Classifier, error) {
	if IsClassifierFolder(dir) {
		return ReadClassifier(dir)
	}
	p := &Classifier{Labels: []string{rewardLabel}, Pooling: PoolLast}
	if files.Exist(dir, lora.ConfigFile) || files.Exist(dir, rewardFile) { // on a language model
		var record rewardRecord
		if err := files.LoadJSON(filepath.Join(dir, rewardFile), &record); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		p.MaxLength = record.MaxLength
		return p, nil
	}
	if isLanguageModel(dir) {
		return readScored(dir)
	}
	config, err := transformers.LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	p.Labels, p.Pooling, p.MaxLength = config.ID2Label, transformers.PoolFamily, config.MaxLength()
	for i := len(p.Labels); i < config.NumLabels; i++ {
		p.Labels = append(p.Labels, fmt.Sprintf("LABEL_%d", i))
	}
	return p, nil
}

// readScored reads what the folder of a sequence or token classifier of transformers on a language model says of it.
func readScored(dir string) (*Classifier, error) {
	path := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config struct {
		Architectures []string          `json:"architectures"`
		Labels        map[string]string `json:"id2label"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	p := &Classifier{Pooling: PoolLast}
	for i := range cmp.Or(len(config.Labels), 2) { // transformers leaves two labels out that have no names
		p.Labels = append(p.Labels, cmp.Or(config.Labels[strconv.Itoa(i)], fmt.Sprintf("LABEL_%d", i)))
	}
	name := strings.Join(config.Architectures, ", ")
	switch {
	case strings.Contains(name, "ForTokenClassification"):
		p.Pooling = PoolStep
	case !strings.Contains(name, "ForSequenceClassification"):
		return nil, fmt.Errorf("%s: a language model (%s) without a score layer: train it with --task reward, or choose a reward model", dir, name)
	}
	return p, nil
}

// IsRewardFolder says whether dir has what Save of a RewardModel wrote.
func IsRewardFolder(dir string) bool {
	if IsClassifierFolder(dir) {
		p, err := ReadClassifier(dir)
		return err == nil && p.IsReward()
	}
	return files.Exist(dir, rewardFile)
}

// AddValueHead implements Policy: reward models have no values.
func (m *RewardModel) AddValueHead() error { return errors.New("a reward model has no value head") }

// Forward implements Policy: the scores of the sequences.
func (m *RewardModel) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	return Output{Scores: m.scores(s, b.Sequences, torch.Pass{Adapter: true, Checkpoint: pass.Checkpoint})}
}

// Encode is the tokens of an example's prompt with its completion. A language model reads them with its chat template and the token that
// ends a text, as in training; an encoder reads RewardText. More than MaxLength tokens are an error, since a cut completion
// has another reward.
func (m *RewardModel) Encode(e chat.Example) (ids []int32, err error) {
	if m.Pooling == PoolStep {
		return nil, fmt.Errorf("%s is a process reward model, which scores steps: use it as process(model=%s)", m.name, m.name)
	}
	long := false
	if m.lm != nil {
		e.Format = chat.PromptCompletion
		q, err := m.lm.encodeExample(e, EncodeOptions{MaxLength: m.MaxLength})
		if err != nil {
			return nil, err
		}
		ids, long = q.IDs, len(q.IDs) > m.MaxLength
	} else if ids, long, err = m.EncodeText(RewardText(e.Prompt, e.Completion)); err != nil {
		return nil, err
	}
	if long {
		return nil, fmt.Errorf("prompt and completion are %w than the %d tokens that the reward model reads", errLonger, m.MaxLength)
	}
	return ids, nil
}

var errLonger = errors.New("longer")

// RewardText is what an encoder reads: the prompt (each message of a conversation after its role), an empty line, and the
// completion.
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

// Answered is the prompt and the answer of a finished completion.
func Answered(c envs.Completion) (e chat.Example) {
	e.Prompt.Text, e.Completion.Text, e.TemplateInputs = c.Observation.Text, c.Text, c.Observation.TemplateInputs
	if messages, text := c.Observation.Messages, c.Text; messages != nil {
		if last := len(messages) - 1; messages[last].Role == envs.RoleAssistant { // the completion continues it
			messages, text = messages[:last], messages[last].Content+text
		}
		e.Prompt = chat.Content{Messages: Conversation(messages)}
		e.Completion = chat.Content{Messages: Conversation([]envs.Message{{Role: envs.RoleAssistant, Content: text}})}
	}
	return e
}

// scores are r of S sequences, [S].
func (m *RewardModel) scores(s *torch.Scope, sequences [][]int32, how torch.Pass) torch.Tensor {
	_, logits := m.read(s, sequences, how)
	return m.scoresOf(s, logits, len(sequences))
}

// scoresOf are the scores of n rows of logits [n, C].
func (m *RewardModel) scoresOf(s *torch.Scope, logits torch.Tensor, n int) torch.Tensor {
	if m.class < 0 {
		return s.Squeeze(logits)
	}
	classes := slices.Repeat([]int64{int64(m.class)}, n)
	return s.Exp(s.Pick(s.LogSoftmax(logits), s.Ints(classes, int64(len(classes)))))
}

// Scores are the rewards of sequences that Encode made, in order. It stops early with ctx's error.
func (m *RewardModel) Scores(ctx context.Context, sequences [][]int32) ([]float64, error) {
	all := make([]float64, 0, len(sequences))
	err := m.inParts(ctx, len(sequences), func(i int) int { return len(sequences[i]) }, func(s *torch.Scope, from, to int) error {
		for _, score := range s.Read(m.scores(s, sequences[from:to], torch.Pass{Adapter: true})) {
			if math.IsNaN(float64(score)) || math.IsInf(float64(score), 0) {
				return fmt.Errorf("a score is %v", score)
			}
			all = append(all, float64(score))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scoring with %s: %w", filepath.Base(m.name), err)
	}
	return all, nil
}

// Units turns preferences and rankings into units for a reward model: a sample per response to a prompt, the best first. The
// column margin says by how much the first should be better. A response that does not fit into MaxLength tokens with its
// prompt drops its unit; with skipBad, so does a row that cannot be encoded.
func (m *RewardModel) Units(examples iter.Seq2[chat.Example, error], skipBad bool) (Preferences, error) {
	var out Preferences
	var err error
	out.Bad.Skip = skipBad
	out.Null, err = encodeAll(&out.Bad, examples, func(e chat.Example) ([]*rl.Sample, error) {
		unit, err := m.unit(e)
		if errors.Is(err, errLonger) {
			return nil, nil
		}
		return unit, err
	}, func(e chat.Example, unit []*rl.Sample) {
		switch {
		case unit == nil:
			out.Dropped++
			out.skip(e)
		case slices.ContainsFunc(unit[1:], func(x *rl.Sample) bool { return slices.Equal(x.Tokens, unit[0].Tokens) }):
			out.Equal++
			out.skip(e)
		default:
			out.add(e, unit)
		}
	})
	return out, cmp.Or(err, out.empty(fmt.Sprintf("are longer than %d tokens", m.MaxLength)))
}

func (m *RewardModel) unit(e chat.Example) ([]*rl.Sample, error) {
	answers := e.Ranked
	if e.Format == chat.Preference {
		answers = answersOf(e)
	}
	var unit []*rl.Sample
	for _, answer := range answers {
		answered := e
		answered.Completion = answer
		ids, err := m.Encode(answered)
		if err != nil {
			return nil, err
		}
		unit = append(unit, &rl.Sample{Tokens: ids, Actions: []int32{0}})
	}
	margin, err := marginOf(e)
	unit[0].Margin = margin
	return unit, err
}

// maxMargin is far above any difference of scores.
const maxMargin = 1e6

// marginOf reads the column margin, 0 if there is none.
func marginOf(e chat.Example) (float64, error) {
	value, ok := e.Extra.Get("margin")
	if !ok || value == nil {
		return 0, nil
	}
	margin, err := strconv.ParseFloat(fmt.Sprint(value), 64)
	if err != nil || math.IsNaN(margin) || math.IsInf(margin, 0) {
		return 0, fmt.Errorf("column \"margin\": %v is not a number", value)
	}
	if math.Abs(margin) > maxMargin {
		return 0, fmt.Errorf("column \"margin\": %v is beyond what can be learned, %g; scale the margins", value, maxMargin)
	}
	return margin, nil
}
