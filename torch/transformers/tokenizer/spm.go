package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
)

// A scored piece is a token of a sentencepiece model: [text, score] in JSON, as Unigram has it.
type scored [2]any

// readSPM reads a folder without tokenizer.json: spm.model of DeBERTa v2 and v3, of which transformers 5 makes the result.
func readSPM(dir string, missing error) ([]byte, error) {
	path := filepath.Join(dir, "spm.model")
	data, err := readTokenizerJSON(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	pieces, err := parseSPM(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	settings, err := readTokenizerConfig(dir)
	if err != nil {
		return nil, err
	}
	return debertaJSON(pieces, settings.doLowerCase != nil && *settings.doLowerCase)
}

// parseSPM reads the pieces of a ModelProto of sentencepiece: field 1, with a text (1) and a score (2).
func parseSPM(data []byte) (pieces []scored, err error) {
	err = eachField(data, func(n protowire.Number, kind protowire.Type, message []byte) error {
		if n != 1 || kind != protowire.BytesType {
			return nil
		}
		text, score := "", float32(0)
		err := eachField(message, func(n protowire.Number, kind protowire.Type, value []byte) error {
			switch {
			case n == 1 && kind == protowire.BytesType:
				text = string(value)
			case n == 2 && kind == protowire.Fixed32Type:
				bits, _ := protowire.ConsumeFixed32(value)
				score = math.Float32frombits(bits)
			}
			return nil
		})
		if !(score <= 0) || math.IsInf(float64(score), 0) {
			return fmt.Errorf("piece %.40q has the score %g", text, score)
		}
		pieces = append(pieces, scored{text, score})
		return err
	})
	if err == nil && len(pieces) == 0 {
		err = errors.New("no pieces")
	}
	return pieces, err
}

// eachField calls visit for each field of a message with its value: the content of a length-delimited one, else its bytes.
func eachField(data []byte, visit func(protowire.Number, protowire.Type, []byte) error) error {
	for len(data) > 0 {
		n, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		if size = protowire.ConsumeFieldValue(n, kind, data); size < 0 {
			return protowire.ParseError(size)
		}
		value := data[:size]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if err := visit(n, kind, value); err != nil {
			return err
		}
		data = data[size:]
	}
	return nil
}

// debertaJSON is tokenizer.json of DebertaV2Tokenizer with these pieces.
func debertaJSON(pieces []scored, lower bool) ([]byte, error) {
	ids := map[any]int{}
	for i, p := range pieces {
		ids[p[0]] = i
	}
	var added []map[string]any
	next := len(pieces)
	for _, token := range []string{"[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"} {
		if _, ok := ids[token]; !ok {
			ids[token] = next
			next++
		}
		added = append(added, map[string]any{
			"id": ids[token], "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
		})
	}
	if ids["[UNK]"] >= len(pieces) {
		return nil, errors.New("spm.model has no piece [UNK]")
	}
	normalizers := []any{
		map[string]any{"type": "Replace", "pattern": map[string]string{"Regex": `\s{2,}|[\n\r\t]`}, "content": " "},
		map[string]any{"type": "NFC"},
		map[string]any{"type": "Strip", "strip_left": false, "strip_right": true},
	}
	if lower {
		normalizers = append([]any{map[string]any{"type": "Lowercase"}}, normalizers...)
	}
	metaspace := map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}
	special := func(token string) map[string]any {
		return map[string]any{"SpecialToken": map[string]any{"id": token, "type_id": 0}}
	}
	text := func(name string) map[string]any {
		return map[string]any{"Sequence": map[string]any{"id": name, "type_id": 0}}
	}
	used := func(token string) map[string]any {
		return map[string]any{"id": token, "ids": []int{ids[token]}, "tokens": []string{token}}
	}
	single := []any{special("[CLS]"), text("A"), special("[SEP]")}
	return json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": added,
		"normalizer":    map[string]any{"type": "Sequence", "normalizers": normalizers},
		"pre_tokenizer": metaspace, "decoder": metaspace,
		"post_processor": map[string]any{
			"type": "TemplateProcessing", "single": single, "pair": append(single, text("B"), special("[SEP]")),
			"special_tokens": map[string]any{"[CLS]": used("[CLS]"), "[SEP]": used("[SEP]")},
		},
		"model": map[string]any{"type": "Unigram", "unk_id": ids["[UNK]"], "vocab": pieces, "byte_fallback": false},
	})
}
