// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// What the manager answers, as /api/v1/openapi.json describes it; only the fields that the driver reads.
type (
	figures struct {
		NUMANode           *int64  `json:"numa_node"`
		LatencyNs          *int64  `json:"latency_ns"`
		BandwidthBytesPerS *int64  `json:"bandwidth_bytes_per_s"`
		Persistent         bool    `json:"persistent"`
		Isolation          *string `json:"isolation"`
	}
	terracePool struct {
		Name           string   `json:"name"`
		Devices        []string `json:"devices"`
		AbsentDevices  []string `json:"absent_devices"`
		CapacityBytes  uint64   `json:"capacity_bytes"`
		GrantableBytes uint64   `json:"grantable_bytes"`
		ScrubbingBytes uint64   `json:"scrubbing_bytes"`
		GranuleBytes   uint64   `json:"granule_bytes"`
		Coherence      string   `json:"coherence"`
		Isolation      string   `json:"isolation"`
		Figures        figures  `json:"figures"`
	}
	terraceDevice struct {
		Serial  string `json:"serial"`
		Backend string `json:"backend"`
		Pool    string `json:"pool"`
		State   string `json:"state"`
		Present bool   `json:"present"`
		Detail  string `json:"detail"`
	}
	terraceLease struct {
		ID          uint64  `json:"id"`
		Pool        string  `json:"pool"`
		Tenant      string  `json:"tenant"`
		Label       string  `json:"label"`
		Bytes       uint64  `json:"bytes"`
		Mode        string  `json:"mode"`
		Phase       string  `json:"phase"`
		TTLNs       uint64  `json:"ttl_ns"`
		ExpiresInNs *uint64 `json:"expires_in_ns"`
		Reason      string  `json:"reason"`
		Cause       *string `json:"cause"`
	}
	terraceFinding struct {
		Code     string  `json:"code"`
		Severity string  `json:"severity"`
		Kind     string  `json:"kind"`
		Name     *string `json:"name"`
		Text     string  `json:"text"`
	}
	terraceReservation struct {
		Pool      string `json:"pool"`
		Tenant    string `json:"tenant"`
		Bytes     uint64 `json:"bytes"`
		UsedBytes uint64 `json:"used_bytes"`
	}
	terraceEvent struct {
		Kind    string  `json:"kind"`
		Lease   *uint64 `json:"lease"`
		Device  *string `json:"device"`
		Message string  `json:"message"`
	}
	eventPage struct {
		Events []terraceEvent `json:"events"`
		Next   uint64         `json:"next"`
		Run    string         `json:"run"`
		More   bool           `json:"more"`
	}
	grantAct struct {
		Pool        string `json:"pool"`
		Tenant      string `json:"tenant"`
		Bytes       uint64 `json:"bytes"`
		Mode        string `json:"mode"`
		TTLNs       uint64 `json:"ttl_ns,omitempty"`
		Persistent  bool   `json:"persistent"`
		Label       string `json:"label"`
		Movable     bool   `json:"movable"`
		RequestHigh uint64 `json:"request_high"`
		RequestLow  uint64 `json:"request_low"`
	}
)

// refusal is an answer of the manager that is not what was asked for.
type refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return fmt.Sprintf("terraced refused: %s [%s]", r.Message, r.Code) }

func refusedAs(err error, code string) bool {
	var told *refusal
	return errors.As(err, &told) && told.Code == code
}

// errAway is what every call returns while nobody answers at the socket.
var errAway = errors.New("terraced does not answer")

// manager asks a terraced at its unix socket for HTTP. Safe for several goroutines.
type manager struct {
	socket string
	client *http.Client
}

const (
	callTimeout    = 20 * time.Second
	answerBytesMax = 64 << 20
	leasesPerPage  = 1000
)

func newManager(socket string) *manager {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	// The manager closes a connection on which nothing is asked for 15 seconds.
	transport := &http.Transport{DialContext: dial, MaxIdleConns: 2, IdleConnTimeout: 10 * time.Second}
	return &manager{socket: socket, client: &http.Client{Transport: transport, Timeout: callTimeout}}
}

func (m *manager) call(ctx context.Context, request *http.Request, into any) error {
	response, err := m.client.Do(request.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("%w at %s (%v): is terraced running on this node, and its runtime directory mounted here?", errAway, m.socket, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	if err != nil {
		return fmt.Errorf("%w at %s: its answer broke off: %v", errAway, m.socket, err)
	}
	if response.StatusCode != http.StatusOK {
		var told struct {
			Error refusal `json:"error"`
		}
		if json.Unmarshal(body, &told) != nil || told.Error.Code == "" {
			return fmt.Errorf("%s: %s answered %s: %.200s", m.socket, request.URL.Path, response.Status, body)
		}
		return &told.Error
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s: the answer of %s is not what this driver knows: %v; is terraced older or newer?", m.socket, request.URL.Path, err)
	}
	return nil
}

func (m *manager) get(ctx context.Context, path string, query url.Values, into any) error {
	request, err := http.NewRequest(http.MethodGet, "http://localhost/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	return m.call(ctx, request, into)
}

func (m *manager) act(ctx context.Context, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, "http://localhost/api/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Terrace-Action", "1")
	return m.call(ctx, request, into)
}

// grant returns the lease of that key: a new one, or the one that an earlier call with the same key made.
func (m *manager) grant(ctx context.Context, act grantAct) (terraceLease, error) {
	var answer struct {
		Info terraceLease `json:"info"`
	}
	err := m.act(ctx, "grant", act, &answer)
	return answer.Info, err
}

// release returns nil also for a lease that is no more.
func (m *manager) release(ctx context.Context, lease uint64) error {
	err := m.act(ctx, "release", map[string]uint64{"lease": lease}, nil)
	if refusedAs(err, "not_found") {
		return nil
	}
	return err
}

func (m *manager) renew(ctx context.Context, lease, ttlNs uint64) error {
	return m.act(ctx, "renew", map[string]uint64{"lease": lease, "ttl_ns": ttlNs}, nil)
}

// leases lists those of a tenant (empty: of all), of which the label says that they are this cluster's.
func (m *manager) leases(ctx context.Context, tenant string) ([]terraceLease, error) {
	var found []terraceLease
	for after := uint64(0); ; {
		query := url.Values{
			"after": {strconv.FormatUint(after, 10)}, "limit": {strconv.Itoa(leasesPerPage)},
			"fields": {"id,pool,tenant,label,bytes,mode,phase,ttl_ns,expires_in_ns,reason,cause"},
		}
		if tenant != "" {
			query.Set("tenant", tenant)
		}
		var page struct {
			Leases []terraceLease `json:"leases"`
		}
		if err := m.get(ctx, "leases", query, &page); err != nil {
			return nil, err
		}
		for _, lease := range page.Leases {
			if _, ours := parseLabel(lease.Label); ours {
				found = append(found, lease)
			}
			after = lease.ID
		}
		if len(page.Leases) < leasesPerPage {
			return found, nil
		}
	}
}

// events returns what happened after `since` in `run` of the manager.
func (m *manager) events(ctx context.Context, since uint64, run string) (eventPage, error) {
	var page eventPage
	query := url.Values{"since": {strconv.FormatUint(since, 10)}, "run": {run}, "fields": {"kind,lease,device,message"}}
	err := m.get(ctx, "events", query, &page)
	return page, err
}

// snapshot is what the manager knows at one time.
type snapshot struct {
	Pools        []terracePool
	Devices      []terraceDevice
	Findings     []terraceFinding
	Reservations []terraceReservation
	Leases       []terraceLease
}

func (m *manager) look(ctx context.Context, tenant string) (*snapshot, error) {
	var seen struct {
		Pools        []terracePool        `json:"pools"`
		Devices      []terraceDevice      `json:"devices"`
		Findings     []terraceFinding     `json:"findings"`
		Reservations []terraceReservation `json:"reservations"`
	}
	for path := range map[string]bool{"pools": true, "devices": true, "health": true, "reservations": true} {
		if err := m.get(ctx, path, nil, &seen); err != nil {
			return nil, err
		}
	}
	leases, err := m.leases(ctx, tenant)
	if err != nil {
		return nil, err
	}
	return &snapshot{seen.Pools, seen.Devices, seen.Findings, seen.Reservations, leases}, nil
}
