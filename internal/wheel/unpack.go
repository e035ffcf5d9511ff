package wheel

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// manifest is the file that lists the others of a folder, as "SIZE PATH" lines.
const manifest = ".manifest"

// errContent marks the error of a wheel whose content is wrong: it must be downloaded again.
var errContent = errors.New("the download was removed: try again")

// complete reports whether a folder has each file of its manifest at full length.
func (s Set) complete(folder string) bool {
	data, err := os.ReadFile(filepath.Join(folder, manifest))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		size, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		info, err := os.Stat(filepath.Join(folder, filepath.FromSlash(name)))
		if err != nil || strconv.FormatInt(info.Size(), 10) != size {
			return false
		}
	}
	if s.Needs != "" {
		_, err := os.Stat(filepath.Join(folder, filepath.FromSlash(s.Needs)))
		return err == nil
	}
	return true
}

// unpack extracts the set's parts of the wheels at paths into dir and writes its manifest.
func (s Set) unpack(ctx context.Context, dir string, paths []string) error {
	var list strings.Builder
	for i, part := range s.Parts {
		if err := part.extract(ctx, dir, paths[i], &list); err != nil {
			return fmt.Errorf("unpacking %s: %w", part.File, err)
		}
	}
	if s.Check != nil {
		if err := s.Check(dir); err != nil {
			return fmt.Errorf("%w; %w", err, errContent)
		}
	}
	return os.WriteFile(filepath.Join(dir, manifest), []byte(list.String()), 0o644)
}

func (p Part) extract(ctx context.Context, dir, path string, list *strings.Builder) error {
	archive, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	for _, member := range archive.File {
		place := p.place(member.Name)
		if place == "" {
			continue
		}
		if !filepath.IsLocal(filepath.FromSlash(place)) {
			return fmt.Errorf("%.120q leaves the folder", member.Name)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := extract(filepath.Join(dir, filepath.FromSlash(place)), member); err != nil {
			return fmt.Errorf("%s: %w", member.Name, err)
		}
		fmt.Fprintf(list, "%d %s\n", member.UncompressedSize64, place)
	}
	return nil
}

// place is the path of a member in the folder; "" if it has none.
func (p Part) place(member string) string {
	if strings.HasSuffix(member, "/") {
		return ""
	}
	if place, ok := p.Places[member]; ok {
		return place
	}
	for prefix, place := range p.Places {
		if rest, ok := strings.CutPrefix(member, prefix); ok && strings.HasSuffix(prefix, "/") {
			return place + rest
		}
	}
	return ""
}

// extract writes one member, executable if the archive says so.
func extract(path string, member *zip.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	from, err := member.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644|member.Mode()&0o111)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
