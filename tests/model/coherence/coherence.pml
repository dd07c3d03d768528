/* The protocol of tensor spaces (docs/design/0015-coherence.md) for one tensor: two writers, one after the other, a
   reader, three hosts whose caches are not coherent, and crashes at every step. Checked over all interleavings.

   Asserted      no torn read        what is read of a slot is of the publication that the version names
                 no stale read       what is read is at least what publish() had returned before the read began
                 nothing is undone   a publication that returned survives its writer
                 exclusive           one owner at a time
                 never blocked       with no writer alive a reader gets its answer at the first attempt

   -DSLOTS=1 or 2      the tensor's slots; -DPINS: the reader reads in place
   -DNO_...            a fault: the step is left out, and an assertion must fail (run_model.py)

   A line is its value. Of a host's copy: absent, clean (maybe old) or dirty. A slot has one line: a tensor of many is
   torn where one of them is not of the version, and each is treated alike. HARDWARE fetches and writes back whatever
   it likes, whenever; that it forgets a clean line is no state of its own, as a line that was never fetched. FLUSH is write-back and barrier, DROP is invalidation and barrier: what a barrier
   orders cannot be told from what was never asked for when it lacks. */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef PUBLICATIONS
#define PUBLICATIONS 1
#endif
#ifdef PINS              /* in place: a writer and its death; who takes over is looked at where copies are read */
#define ROUNDS (PUBLICATIONS + 1)
#define NOBODY_LEFT first_gone
#else
#define ROUNDS PUBLICATIONS
#define NOBODY_LEFT heir_done
#endif

#define REC 0            /* the record's word */
#define DATA(s) (1 + (s))
#define PIN 3            /* the reader's pin: slot + 1 */
#define LINES 4
#define BLANK 64         /* flag of the word: no content */

#define ABSENT 0
#define CLEAN 1
#define DIRTY 2

#define READER 0
#define FIRST 1
#define HEIR 2

byte mem[LINES];
byte copy[12];           /* host * LINES + line */
byte state[12];

/* What is true, for the assertions. */
byte content[24];        /* version: number of the publication that it is of */
byte attempts;
byte published;          /* the version that publish() returned last */
byte owners;
bool first_gone;         /* the first writer is dead and fenced, or gave the part back */
bool heir_done;

#define AT(h, l) ((h) * LINES + (l))
#define SLOT(v) ((SLOTS == 2) -> (((v) >> 1) & 1) : 0)

inline load(h, l, x) {
  d_step {
    if
    :: state[AT(h, l)] != ABSENT -> x = copy[AT(h, l)]
    :: else -> x = mem[l]
    fi
  }
}
inline store(h, l, x) {
  d_step { copy[AT(h, l)] = x; state[AT(h, l)] = DIRTY }
}
/* To memory, if it was not there already; copies do not matter to the one who wrote. */
inline flush(h, l) {
  d_step {
    if
    :: state[AT(h, l)] == DIRTY -> mem[l] = copy[AT(h, l)]; state[AT(h, l)] = ABSENT; copy[AT(h, l)] = 0
    :: else
    fi
  }
}
inline drop(h, l) {
  d_step {
    if
    :: state[AT(h, l)] == DIRTY -> mem[l] = copy[AT(h, l)]
    :: else
    fi;
    state[AT(h, l)] = ABSENT; copy[AT(h, l)] = 0
  }
}

/* Caches of their own accord. Only what makes a difference: nobody else writes a writer's lines while it owns them. */
inline write_back_at_will(h, l) {
  state[AT(h, l)] == DIRTY -> flush(h, l)
}
inline keep_at_will(h, l) {
  atomic { state[AT(h, l)] == ABSENT -> copy[AT(h, l)] = mem[l]; state[AT(h, l)] = CLEAN }
}
active proctype hardware() {
end:
  do
  :: write_back_at_will(FIRST, REC)
  :: write_back_at_will(FIRST, DATA(0))
  :: keep_at_will(READER, REC)
  :: keep_at_will(READER, DATA(0))
#if SLOTS == 2
  :: write_back_at_will(FIRST, DATA(1))
  :: keep_at_will(READER, DATA(1))
#endif
#ifdef PINS
  :: write_back_at_will(READER, PIN)
  :: keep_at_will(FIRST, PIN)
#else
  :: write_back_at_will(HEIR, REC)
  :: write_back_at_will(HEIR, DATA(0))
  :: !first_gone -> keep_at_will(HEIR, REC)
#if SLOTS == 2
  :: write_back_at_will(HEIR, DATA(1))
#endif
#endif
  od
}

/* One publication. A pinned slot is not touched: the mark is taken back. */
inline publish_one(h) {
  load(h, REC, word);
  target = (word & ~BLANK) + 2;
  slot = SLOT(target);
  store(h, REC, word + 1);
#ifndef NO_MARK_FLUSH
  flush(h, REC);
#endif
  pin = 0;
#ifdef PINS
#ifndef NO_PIN_DROP
  drop(h, PIN);
#endif
#ifndef NO_PIN_CHECK
  load(h, PIN, pin);
#endif
#endif
  if
  :: pin == slot + 1 -> store(h, REC, word); flush(h, REC)
  :: else ->
     d_step { attempts++; content[target] = attempts; mine = attempts }
     store(h, DATA(slot), mine);
#ifndef NO_DATA_FLUSH
     flush(h, DATA(slot));
#endif
     store(h, REC, target);
#ifndef NO_FLIP_FLUSH
     flush(h, REC);
#endif
     d_step { published = target; mine = 0 }
  fi;
  d_step { word = 0; target = 0; slot = 0; pin = 0 }
}

/* Fencing: what a dead holder's host still has of it reaches memory, or is lost with the host. */
inline lost_or_not(h, l) {
  if
  :: state[AT(h, l)] == DIRTY -> flush(h, l)
  :: d_step { state[AT(h, l)] = ABSENT; copy[AT(h, l)] = 0 }
  fi
}
inline fence(h) {
  lost_or_not(h, REC);
  lost_or_not(h, DATA(0));
#if SLOTS == 2
  lost_or_not(h, DATA(1));
#endif
  skip
}

bool kill_first, kill_heir;
active proctype killer() {
end:
  do
  :: !kill_first -> kill_first = true
  :: !kill_heir -> kill_heir = true
  od
}

active proctype first() {
  byte word, target, slot, pin, mine, done;
  owners++;
  {
    do
    :: done < ROUNDS -> publish_one(FIRST); done++
    :: done == ROUNDS -> break
    od
  } unless { kill_first };
  fence(FIRST);
  d_step { owners--; first_gone = true; word = 0; target = 0; slot = 0; pin = 0; mine = 0; done = 0 }
}

#ifndef PINS
active proctype heir() {
  byte word, target, slot, pin, mine;
#ifndef NO_DEATH_CHECK
  first_gone;
#endif
  d_step { owners++; assert(owners == 1) }
  {
#ifndef NO_TAKE_OVER_DROP
    drop(HEIR, REC);
#endif
    load(HEIR, REC, word);
    assert(word / 2 * 2 >= published || SLOTS == 1);
    if
    :: word % 2 == 1 ->
#ifdef NO_ROLL_BACK
       store(HEIR, REC, word + 1);
#else
       /* the last whole slot, under a number that nobody saw; an only slot has lost its content */
       d_step {
         content[word + 3] = content[word - 1];
         target = word + 3 + ((SLOTS == 1) -> BLANK : 0)
       }
       store(HEIR, REC, target);
#endif
       flush(HEIR, REC)
    :: else
    fi;
    d_step { word = 0; target = 0 }
    publish_one(HEIR)
  } unless { kill_heir };
  fence(HEIR);
  d_step { owners--; heir_done = true; word = 0; target = 0; slot = 0; pin = 0; mine = 0 }
}

#endif

#define HOLDS(w, v) (!((w) & BLANK) && (w) >= (v) && (w) - (v) <= ((SLOTS == 2) -> 2 : 0))

/* What was read must be the publication that the version names. */
inline judge() {
  d_step {
    assert(seen == content[version]);
    assert(version >= floor || SLOTS == 1);
    seen = 0
  }
}

active proctype reader() {
  byte word, version, slot, seen, floor;
  bool alone;
again: skip;
  d_step {
    floor = published; alone = NOBODY_LEFT; word = 0; version = 0; slot = 0; seen = 0
  }
end:
#ifndef NO_REC_DROP
  drop(READER, REC);
#endif
  load(READER, REC, word);
  if
  :: (word & BLANK) || (SLOTS == 1 && word % 2 == 1) -> assert(SLOTS == 1); goto again
  :: else -> d_step { version = word - word % 2; slot = SLOT(version) }
  fi;
#ifdef PINS
  store(READER, PIN, slot + 1);
#ifndef NO_PIN_FLUSH
  flush(READER, PIN);
#endif
#ifndef NO_PIN_RECHECK
  drop(READER, REC);
  load(READER, REC, word);
  if
  :: !HOLDS(word, version) -> assert(!alone); store(READER, PIN, 0); flush(READER, PIN); goto again
  :: else
  fi;
#endif
#endif
#ifndef NO_DATA_DROP
  drop(READER, DATA(slot));
#endif
  load(READER, DATA(slot), seen);
#ifdef PINS
  judge();
  /* later, still in place, whatever the caches did meanwhile */
  load(READER, DATA(slot), seen);
  judge();
  store(READER, PIN, 0);
  flush(READER, PIN);
#else
#ifndef NO_RECHECK
#ifndef NO_RECHECK_DROP
  drop(READER, REC);
#endif
  load(READER, REC, word);
  if
  :: !HOLDS(word, version) -> assert(!alone); goto again
  :: else
  fi;
#endif
  judge();
#endif
  goto again
}
