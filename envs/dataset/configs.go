package dataset

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"

	"github.com/rltrain/rltrain/internal/words"
	"github.com/rltrain/rltrain/internal/yamldepth"
)

// configuration is a configuration of a data set.
type configuration struct {
	name      string
	isDefault bool
	dir       string
	files     []patterns // nil: by the file names in dir
}

// patterns are the file patterns of a split.
type patterns struct {
	split string
	paths []string
}

// readConfigs reads "configs" in the YAML header of a README.md; nil if there is no header.
func readConfigs(readme []byte) ([]configuration, error) {
	head, err := configsOf(readme)
	if err != nil {
		return nil, fmt.Errorf("README.md: %w", err)
	}
	var card struct {
		Configs []struct {
			Name    string `yaml:"config_name"`
			Default bool   `yaml:"default"`
			Dir     string `yaml:"data_dir"`
			Files   any    `yaml:"data_files"`
		} `yaml:"configs"`
	}
	if err := yamldepth.Check([]byte(head)); err != nil {
		return nil, fmt.Errorf("README.md: %w", err)
	}
	if err := yaml.Unmarshal([]byte(head), &card); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("README.md: the header is not valid YAML: %s", first)
	}
	var configs []configuration
	for _, c := range card.Configs {
		files, err := readPatterns(c.Files)
		if err != nil {
			return nil, fmt.Errorf("README.md: configuration %s: data_files: %w", words.Quote(c.Name), err)
		}
		configs = append(configs, configuration{name: c.Name, isDefault: c.Default, dir: c.Dir, files: files})
	}
	return configs, nil
}

// maxConfigs bounds the size of the configurations' YAML, and maxBrackets its nesting: the parser's time is quadratic.
const maxConfigs, maxBrackets = 1 << 20, 8

// configsOf extracts the key "configs" from the YAML header of a README.md. The header may also describe every column, at
// length.
func configsOf(readme []byte) (string, error) {
	text := strings.ReplaceAll(string(bytes.TrimPrefix(readme, []byte("\ufeff"))), "\r\n", "\n")
	head, found := strings.CutPrefix(text, "---\n")
	if !found {
		return "", nil
	}
	if head, _, found = strings.Cut("\n"+head, "\n---"); !found {
		return "", nil
	}
	var cut strings.Builder
	inside := false
	for line := range strings.Lines(head) {
		if !strings.ContainsAny(line[:1], " -#\n") {
			inside = strings.HasPrefix(line, "configs:")
		}
		if inside {
			cut.WriteString(line)
		}
	}
	if cut.Len() > maxConfigs {
		return "", fmt.Errorf("the configurations have %d bytes, maximum %d", cut.Len(), maxConfigs)
	}
	depth := 0
	for _, t := range lexer.Tokenize(cut.String()) {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.AnchorType, token.AliasType:
			return "", fmt.Errorf("YAML anchor or alias %s is not supported in configurations; quote the pattern", words.Quote(t.Value))
		}
		if depth > maxBrackets {
			return "", fmt.Errorf("the configurations are nested deeper than %d", maxBrackets)
		}
	}
	return cut.String(), nil
}

// readPatterns reads a path, a list of paths, or a list of {split, path}.
func readPatterns(value any) ([]patterns, error) {
	if value == nil {
		return nil, nil
	}
	if paths, err := stringsOf(value); err == nil {
		return []patterns{{"train", paths}}, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("want a path, a list of paths, or a list of split and path")
	}
	var out []patterns
	for _, item := range list {
		fields, _ := item.(map[string]any)
		split, _ := fields["split"].(string)
		paths, err := stringsOf(fields["path"])
		if split == "" || err != nil {
			return nil, fmt.Errorf("want a path, a list of paths, or a list of split and path")
		}
		out = append(out, patterns{split, paths})
	}
	return out, nil
}

func stringsOf(value any) ([]string, error) {
	if s, ok := value.(string); ok {
		return []string{s}, nil
	}
	list, _ := value.([]any)
	var out []string
	for _, item := range list {
		s, ok := item.(string)
		if !ok {
			return nil, fmt.Errorf("want strings")
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("want strings")
	}
	return out, nil
}

func pickConfig(configs []configuration, name string) (configuration, error) {
	var names []string
	for _, c := range configs {
		if name != "" && c.name == name || name == "" && (c.isDefault || c.name == "default" || len(configs) == 1) {
			return c, nil
		}
		names = append(names, c.name)
	}
	if name == "" {
		return configuration{}, fmt.Errorf("the data set has several configurations; choose one with --dataset-config: %s", words.List(names))
	}
	return configuration{}, fmt.Errorf("the data set has no configuration %s; choose from %s", words.Quote(name), words.List(names))
}

// parts finds the files of the given splits, or of all splits. Each split must have files.
func (c configuration) parts(names, splits []string) ([]Part, error) {
	var parts []Part
	for _, p := range c.files {
		if len(splits) > 0 && !slices.Contains(splits, p.split) && !slices.Contains(splits, usualSplit(p.split)) {
			continue
		}
		part := Part{Split: p.split}
		for _, glob := range p.paths {
			match, err := globOf(glob)
			if err != nil {
				return nil, err
			}
			found := false
			for _, name := range names {
				if match.MatchString(name) {
					found = true
					if !slices.Contains(part.Files, name) {
						part.Files = append(part.Files, name)
					}
				}
			}
			if !found {
				return nil, fmt.Errorf("no files match %s, which README.md names for split %s%s", words.Quote(glob), words.Quote(p.split), ofConfig(c.name))
			}
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func ofConfig(name string) string {
	if name == "" {
		return ""
	}
	return " of the configuration " + words.Quote(name)
}

// characters is a character class in a path pattern.
var characters = regexp.MustCompile(`^\[[^\]\[\\^!]+\]`)

// globOf compiles a path pattern: * and ? match within a name, ** across names, [ab] and [0-9] one of these characters.
func globOf(glob string) (*regexp.Regexp, error) {
	var out strings.Builder
	out.WriteString("^")
	rest := strings.TrimPrefix(glob, "./")
	for rest != "" {
		set := characters.FindString(rest)
		switch {
		case strings.HasPrefix(rest, "**/"):
			out.WriteString("(?:.*/)?")
			rest = rest[3:]
		case strings.HasPrefix(rest, "**"):
			out.WriteString(".*")
			rest = rest[2:]
		case rest[0] == '*':
			out.WriteString("[^/]*")
			rest = rest[1:]
		case rest[0] == '?':
			out.WriteString("[^/]")
			rest = rest[1:]
		case set != "":
			out.WriteString(set)
			rest = rest[len(set):]
		default:
			_, size := utf8.DecodeRuneInString(rest)
			out.WriteString(regexp.QuoteMeta(rest[:size]))
			rest = rest[size:]
		}
	}
	match, err := regexp.Compile(out.String() + "$")
	if err != nil {
		return nil, fmt.Errorf("README.md: file pattern %s: %w", words.Quote(glob), err)
	}
	return match, nil
}
