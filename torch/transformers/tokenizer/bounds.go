package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// A tokenizer.json is untrusted, and the library that runs it uses as much memory and time as it asks for, or ends the
// process. So the sizes of the file and of the texts passed to the library are bounded here.
const (
	maxTokenizerFile = 256 << 20 // bytes; the largest known ones have 35 MB
	maxText          = 4 << 20   // bytes of a text to encode at once; ids and spans take about 150 times as much
	maxExpanded      = 64 << 20  // bytes of a text after normalisation
	leastText        = 500       // bytes; a tokenizer that can take no more is refused
)

// readTokenizerJSON reads the file, up to a limit.
func readTokenizerJSON(path string) ([]byte, error) {
	f, err := smallfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxTokenizerFile {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxTokenizerFile)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTokenizerFile+1))
	if err == nil && len(data) > maxTokenizerFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxTokenizerFile)
	}
	return data, err
}

// longestText is the maximum number of bytes of a text to pass to the library, derived from tokenizer.json.
func longestText(parts map[string]json.RawMessage) (int, error) {
	factor, longest := 1.0, maxText
	for _, name := range []string{"normalizer", "pre_tokenizer", "decoder"} {
		var part any
		if err := unmarshalField(parts, name, &part); err != nil {
			return 0, err
		}
		if name != "pre_tokenizer" {
			grows, err := expansion(part)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			factor = max(factor, grows)
		}
		err := eachPattern(part, func(pattern string) error {
			s, err := patternSteps(pattern)
			if err == nil && s.longest() < leastText {
				err = fmt.Errorf("it can take more than %g steps for a text of %d characters", float64(maxSteps), leastText)
			}
			if err != nil {
				return fmt.Errorf("%s: the pattern %.200q cannot be used: %w", name, pattern, err)
			}
			longest = min(longest, s.longest())
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	longest = min(longest, int(maxExpanded/factor))
	if longest < leastText {
		return 0, fmt.Errorf("normalizer: it can make a text %.0f times as long, more than %d times", factor, maxExpanded/leastText)
	}
	return longest, nil
}

// eachPattern calls visit for each regular expression in a part of tokenizer.json.
func eachPattern(part any, visit func(pattern string) error) error {
	switch p := part.(type) {
	case map[string]any:
		if pattern, ok := p["Regex"].(string); ok {
			return visit(pattern)
		}
		for _, inner := range p {
			if err := eachPattern(inner, visit); err != nil {
				return err
			}
		}
	case []any:
		for _, inner := range p {
			if err := eachPattern(inner, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// expansion is the maximum growth of a text when it is normalised or decoded, in bytes per byte.
func expansion(part any) (float64, error) {
	p, ok := part.(map[string]any)
	if !ok {
		return 1, nil
	}
	content, _ := p["content"].(string)
	switch p["type"] {
	case "Sequence":
		factor := 1.0
		for _, name := range []string{"normalizers", "decoders"} {
			inner, _ := p[name].([]any)
			for _, one := range inner {
				grows, err := expansion(one)
				if err != nil {
					return 0, err
				}
				factor *= grows
			}
		}
		return factor, nil
	case "Replace":
		pattern, _ := p["pattern"].(map[string]any)
		if text, _ := pattern["String"].(string); text != "" {
			return max(1, float64(len(content))/float64(len(text))), nil
		}
		return 1 + float64(len(content)), nil // an expression may match no character between two
	case "Prepend":
		prepend, _ := p["prepend"].(string)
		return 1 + float64(len(prepend)), nil // it goes before each piece between special tokens
	case "Precompiled":
		return precompiledExpansion(p["precompiled_charsmap"])
	case "NFKC", "NFKD":
		return 11, nil // U+FDFA: 3 bytes become 33
	case "NFC", "NFD", "BertNormalizer", "Lowercase":
		return 3, nil
	}
	return 1, nil
}

// precompiledExpansion is the longest entry of SentencePiece's table: the size of a trie, the trie, and the NUL-
// terminated texts it points to.
func precompiledExpansion(value any) (float64, error) {
	text, _ := value.(string)
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return 0, fmt.Errorf("precompiled_charsmap: %w", err)
	}
	if len(data) < 4 || uint64(binary.LittleEndian.Uint32(data)) > uint64(len(data)-4) {
		return 0, errors.New("precompiled_charsmap: the table is shorter than it says")
	}
	longest := 1
	for entry := range strings.SplitSeq(string(data[4+binary.LittleEndian.Uint32(data):]), "\x00") {
		longest = max(longest, len(entry))
	}
	return float64(longest), nil
}

// slack is how many more tokens are read than wanted: the last tokens of a cut text may differ from those of the full
// text.
const slack = 64

// start is the part of text, from its start or with left from its end, that most likely has n tokens. It is the full
// text if that is not much longer. It does not cut words if it can avoid it.
func start(text string, tokens, bytesPerToken int, left bool) string {
	size := len(text)
	if n := (uint64(tokens) + slack) * uint64(bytesPerToken); n < uint64(size)/2 {
		size = int(n)
	}
	if size == len(text) {
		return text
	}
	if left {
		from := len(text) - size
		for from < len(text) && !utf8.RuneStart(text[from]) {
			from++
		}
		if i := strings.IndexFunc(text[from:min(from+256, len(text))], unicode.IsSpace); i > 0 {
			from += i
		}
		return text[from:]
	}
	for !utf8.RuneStart(text[size]) {
		size--
	}
	if i := strings.LastIndexFunc(text[max(0, size-256):size], unicode.IsSpace); i > 0 {
		size = max(0, size-256) + i
	}
	return text[:size]
}
