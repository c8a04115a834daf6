'use strict';
// A parked Node worker: warm up, say so, wait on fd 3 for the one job this process will ever run, then be `node -e`.
//
// Messages on fd 3, as in ringfence.isolation.protocol: 4-byte big-endian length of what follows, one byte of kind,
// a payload. In: one JOB, JSON {"language", "code", "args", "env"}, then START. Out: READY when parked, STARTED when it is
// understood.
// process.stdin, stdout and stderr stay untouched until the guest asks for them: their first use decides what they are.

const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const vm = require('node:vm');
const Module = require('node:module');
const { Console } = require('node:console');
const { Writable } = require('node:stream');
const { pathToFileURL } = require('node:url');

const CHANNEL = 3;
const READY = 1;
const START = 2;
const STARTED = 3;
const JOB = 26;
const LARGEST_JOB = 64 * 1024 * 1024;
const NAME = '[eval]';
const CANNOT_START = 126;
const UNSETTLED_AWAIT = 13; // what Node exits with when the event loop runs dry below a top-level await

// What V8 says of a script that has the syntax of an ES module.
const SAYS_MODULE = [
  'Cannot use import statement outside a module',
  "Unexpected token 'export'",
  "Cannot use 'import.meta' outside a module",
];

function main() {
  warm(process.argv[2] === 'typescript');
  const job = nextJob();
  if (job === null) process.reallyExit(0);
  become(job);
  // From the event loop, so that a guest's stack trace is not followed by the frames that loaded this file.
  process.nextTick(() => run(job.language === 'typescript' ? withoutTypes(job.code) : job.code));
}

function warm(typescript) {
  // Done here and not in the run: what the first console.log of a guest has to load and compile.
  const stdout = new Writable({ write: (_chunk, _encoding, done) => done() });
  // No colour mode 'auto': to find out about colours it would open process.stderr.
  new Console({ stdout, colorMode: false }).log('warm %s', 1, { a: [1, 'b', new Map([[1, 2]])], e: new Error('warm') });
  new net.Socket();
  compile('const warm = () => typeof require; warm();').runInThisContext();
  if (typescript && typeof Module.stripTypeScriptTypes === 'function') withoutTypes('const warm: number = 1;');
}

function nextJob() {
  try {
    say(READY);
    const body = hear(JOB);
    if (body === null) return null;
    const job = JSON.parse(body.toString('utf8'));
    if (hear(START) === null) return null;
    say(STARTED);
    return job;
  } catch {
    return null; // the host is gone or spoke nonsense: there is no run to fail
  } finally {
    fs.closeSync(CHANNEL); // one job only: nothing can reach this process a second time
  }
}

function hear(kind) {
  const header = readExactly(5);
  if (header === null || header[4] !== kind) return null;
  const size = header.readUInt32BE(0) - 1;
  return size > LARGEST_JOB ? null : readExactly(size);
}

function say(kind) {
  fs.writeSync(CHANNEL, Buffer.from([0, 0, 0, 1, kind]));
}

function readExactly(size) {
  const buffer = Buffer.alloc(size);
  for (let have = 0; have < size; ) {
    const count = fs.readSync(CHANNEL, buffer, have, size - have, null);
    if (count === 0) return null;
    have += count;
  }
  return buffer;
}

function become(job) {
  if (job.cwd !== undefined) startIn(job.cwd);
  Object.assign(process.env, job.env);
  process.argv = [process.execPath, ...job.args];
  process.execArgv = [];
  process.mainModule = undefined;
  delete require.cache[__filename];
  if (job.env.NODE_PATH !== undefined) Module._initPaths();
  if (job.env.NODE_EXTRA_CA_CERTS !== undefined) believe(job.env.NODE_EXTRA_CA_CERTS);
  keepOutput('stdout');
  keepOutput('stderr');
  process.on('beforeExit', () => {
    process.off('exit', leave);
    process.on('exit', leave);
  });
}

function believe(file) {
  // A starting Node reads this variable, and a parked one has started already.
  let certificates;
  try {
    certificates = fs.readFileSync(file, 'utf8');
  } catch (error) {
    process.emitWarning(`Ignoring extra certs from \`${file}\`, load failed: ${error.code}`);
    return;
  }
  const tls = require('node:tls');
  if (typeof tls.setDefaultCACertificates === 'function') {
    const each = certificates.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g) ?? [];
    tls.setDefaultCACertificates([...tls.getCACertificates('default'), ...each]);
    return;
  }
  const make = tls.createSecureContext; // before 22.19 and 24.5
  tls.createSecureContext = (options) => {
    const made = make(options);
    if (!options?.ca) made.context.addCACert(certificates);
    return made;
  };
}

function startIn(cwd) {
  try {
    process.chdir(cwd);
  } catch (error) {
    fs.writeSync(2, `ringfence: ${cwd}: ${error.code}\n`);
    process.reallyExit(CANNOT_START);
  }
}

function keepOutput(name) {
  // Written as it is said: otherwise process.exit() drops what a slow reader has not taken from the pipe yet.
  const { get, ...rest } = Object.getOwnPropertyDescriptor(process, name);
  let stream;
  const once = () => {
    if (stream === undefined) {
      stream = get.call(process);
      stream._handle?.setBlocking?.(true);
    }
    return stream;
  };
  Object.defineProperty(process, name, { ...rest, get: once });
}

function leave(code) {
  // Ends the process without taking the heap apart first, unless a guest's own exit handler is still to be called.
  if (process.listeners('exit').at(-1) === leave) process.reallyExit(Number(process.exitCode ?? code));
}

function withoutTypes(code) {
  if (typeof Module.stripTypeScriptTypes !== 'function') {
    throw new Error(`Node ${process.version} cannot strip TypeScript types; 22.13 or newer can`);
  }
  try {
    return Module.stripTypeScriptTypes(code, { mode: 'strip' }); // keeps lines and columns as written
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error;
    return Module.stripTypeScriptTypes(code, { mode: 'transform' }); // enums, namespaces, parameter properties
  }
}

function run(code) {
  let script;
  try {
    script = compile(code);
  } catch (error) {
    if (!isModule(code, error)) throw error;
    return runAsModule(code);
  }
  const here = path.join(process.cwd(), NAME);
  const module = new Module(NAME);
  module.filename = here;
  module.paths = Module._nodeModulePaths(process.cwd());
  globalThis.module = module;
  globalThis.exports = module.exports;
  globalThis.require = Module.createRequire(here);
  globalThis.__filename = NAME;
  globalThis.__dirname = '.';
  return script.runInThisContext({ displayErrors: true });
}

function compile(code) {
  // A relative import() in a script without a path is resolved from the working directory.
  return new vm.Script(code, {
    filename: NAME,
    importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
}

function isModule(code, error) {
  if (SAYS_MODULE.some((words) => error.message.includes(words))) return true;
  try {
    compile(`(async () => {${code}\n})`); // never run: it parses like this only when top-level await was the fault
    return true;
  } catch {
    return false;
  }
}

function runAsModule(code) {
  if (typeof Module.registerHooks !== 'function') return runInFreshNode(code);
  // A module that exists in memory alone, but whose address makes './x.mjs' mean the working directory.
  const url = pathToFileURL(path.join(process.cwd(), NAME)).href;
  const hooks = Module.registerHooks({
    resolve: (specifier, context, next) =>
      specifier === url ? { url, format: 'module', shortCircuit: true } : next(specifier, context),
    load: (address, context, next) =>
      address === url ? { format: 'module', source: code, shortCircuit: true } : next(address, context),
  });
  let settled = false;
  process.once('beforeExit', () => {
    if (settled) return;
    fs.writeSync(2, 'Warning: Detected unsettled top-level await\n');
    process.exitCode ??= UNSETTLED_AWAIT;
  });
  return import(url).finally(() => {
    settled = true;
    hooks.deregister();
  });
}

function runInFreshNode(code) {
  // Before 22.15 only a starting Node takes a module without a file; slower, and exactly what it would have been.
  const done = require('node:child_process').spawnSync(
    process.execPath,
    ['--input-type=module', '-e', code, '--', ...process.argv.slice(1)],
    { stdio: 'inherit' },
  );
  if (done.error) throw done.error;
  if (done.signal) process.kill(process.pid, done.signal);
  process.exitCode = done.status;
}

main();
